"""Data: targets and prompts in, responses and features out."""
