"""Cursors of lists: where the page before ended, signed together with the list they belong to.

A client cannot make one, nor carry one from one list to another, which would read like an answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import Annotated, Any

from fastapi import Query
from fastapi.exceptions import RequestValidationError

After = Annotated[
    str | None,
    Query(max_length=200, description="`next` of the page before; of the same list only."),
]
Limit = Annotated[int, Query(ge=1, le=100, description="Entries of a page.")]
MAC_BYTES = 12


class Cursors:
    """Makes and reads the cursors of one list.

    Args:
        secret: signs them.
        parts: what the list is of: its name, who asks, and every filter.
    """

    def __init__(self, secret: bytes, *parts: Any) -> None:
        self._key = hmac.digest(secret, json.dumps(parts, default=str).encode(), hashlib.sha256)

    def make(self, last: str | None) -> str | None:
        """The cursor of the page after this id; None when there is none."""
        if last is None:
            return None
        return base64.urlsafe_b64encode(self._mac(last) + last.encode()).decode().rstrip("=")

    def read(self, cursor: str | None) -> str | None:
        """The id that a page follows.

        Raises:
            RequestValidationError: not a cursor of this list.
        """
        if cursor is None:
            return None
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
            mac, last = raw[:MAC_BYTES], raw[MAC_BYTES:].decode()
        except (binascii.Error, ValueError):
            mac, last = b"", ""
        if not hmac.compare_digest(mac, self._mac(last)):
            raise RequestValidationError(
                [
                    {
                        "type": "cursor",
                        "loc": ("query", "after"),
                        "msg": "expected the `next` of a page of this list, with the same filters",
                        "input": cursor,
                    }
                ]
            )
        return last

    def _mac(self, last: str) -> bytes:
        return hmac.digest(self._key, last.encode(), hashlib.sha256)[:MAC_BYTES]
