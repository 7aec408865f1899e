"""Settings of a test's own."""

from __future__ import annotations

from jobs.settings import Settings


def settings_of(**values: object) -> Settings:
    """These values, read as from a file, but no `.env` of whoever runs the tests."""
    return Settings.model_validate({"_env_file": None, **values})
