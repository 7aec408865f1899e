"""`eagle3 compare`: every drafting method on the same prompts, after trainings of one budget."""
