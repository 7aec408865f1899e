"""Training-time test, its loss, loop and checkpoints."""
