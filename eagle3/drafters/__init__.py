"""Drafting methods, one file each."""
