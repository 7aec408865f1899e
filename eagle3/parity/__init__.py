"""The gate after training: every engine accepts what the trainer said, and writes the same text."""
