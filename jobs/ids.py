"""Identifiers that sort by time: a prefix, 48 bits of milliseconds, 80 random bits (as in ULID)."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def utcnow() -> datetime:
    """This machine's clock; everything that compares times takes `now` as an argument instead."""
    return datetime.fromtimestamp(time.time(), UTC)


def new_id(prefix: str, now: datetime | None = None) -> str:
    """`job_` and the like, followed by 26 characters of Crockford base32 in lower case."""
    millis = int((now or utcnow()).timestamp() * 1000)
    value = (millis << 80) | secrets.randbits(80)
    return prefix + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
