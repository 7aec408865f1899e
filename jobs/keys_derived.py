"""Secrets that are kept nowhere: derived from the pepper and from what they are for.

Embedded mode has no pepper; it makes a random one in its home directory, which only its user reads.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from jobs.files import temporary
from jobs.settings import Settings

FILE = "secret"
LENGTH = 32


def derived(settings: Settings, *purpose: str | int) -> bytes:
    """The 32 bytes for a purpose: always the same, and none follows from another."""
    text = "\x00".join(str(part) for part in purpose)
    return hmac.digest(root_secret(settings), text.encode(), hashlib.sha256)


def root_secret(settings: Settings) -> bytes:
    """What all of them are derived from."""
    if settings.api_key_pepper is not None:
        return settings.api_key_pepper.get_secret_value().encode()
    return _own(settings.home / FILE)


def _own(path: Path) -> bytes:
    """The content of the file, made by the first of the processes that ask."""
    if not path.is_file():
        with temporary(path.parent) as tmp:
            tmp.write_bytes(secrets.token_bytes(LENGTH))
            try:
                os.link(tmp, path)
            except FileExistsError:
                pass  # a rival was first
    return path.read_bytes()
