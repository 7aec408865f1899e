"""One file per serving format."""
