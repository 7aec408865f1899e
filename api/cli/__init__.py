"""The command line `updraft`. One module a topic; `docs/cli.md` is its manual."""

from __future__ import annotations

from api.cli.root import app, main

__all__ = ["app", "main"]
