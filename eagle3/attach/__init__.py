"""What an attachment asks: what a checkpoint is, and what drafts that exist are worth on it."""
