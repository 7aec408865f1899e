"""Decoding: cache, attention, fast rows, tree, verification, engine."""
