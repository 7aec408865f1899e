"""The client to await."""
