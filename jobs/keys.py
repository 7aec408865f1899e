"""API keys: `upd_` + 40 random characters + 6 of checksum, so that secret scanners know them.

Only HMAC-SHA256(pepper, key) is stored; a key is shown once, when it is made.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Collection
from datetime import datetime, timedelta

from pydantic import SecretStr
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.errors import Invalid, NotFound, Unauthorized
from jobs.ids import new_id
from jobs.models import ApiKey

PREFIX = "upd_"
SCOPES = ("jobs:read", "jobs:write", "drafts:read", "drafts:promote", "admin")
ALPHABET = string.digits + string.ascii_letters
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{46}}")
_USED_EVERY = timedelta(minutes=1)


def create_key(
    session: Session,
    name: str,
    scopes: Collection[str],
    *,
    pepper: SecretStr,
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key. Returns its row and the key itself, which is kept nowhere.

    Raises:
        Invalid: an unknown scope.
    """
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise Invalid(f"unknown scope {', '.join(unknown)}; expected {', '.join(SCOPES)}")
    body = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(40))
    token = body + _checksum(body)
    row = ApiKey(
        id=new_id("key_", now),
        name=name,
        hint=token[:10],
        hash=_hash(token, pepper),
        scopes=sorted(set(scopes)),
        created_at=now,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row, token


def authenticate(session: Session, token: str, *, pepper: SecretStr, now: datetime) -> ApiKey:
    """The row of a valid key; notes its use about once a minute (needs a write session for that).

    Raises:
        Unauthorized: malformed, unknown, expired or revoked; which of them is not said.
    """
    refused = Unauthorized("the API key is not valid; send a valid one as Authorization: Bearer")
    if not _FORM.fullmatch(token) or not hmac.compare_digest(_checksum(token[:-6]), token[-6:]):
        raise refused
    digest = _hash(token, pepper)
    row = session.scalars(select(ApiKey).where(ApiKey.hash == digest)).one_or_none()
    if row is None or not hmac.compare_digest(row.hash, digest) or row.revoked_at is not None:
        raise refused
    if row.expires_at is not None and row.expires_at <= now:
        raise refused
    if row.last_used_at is None or now - row.last_used_at > _USED_EVERY:
        row.last_used_at = now
    return row


def list_keys(session: Session) -> list[ApiKey]:
    """All keys, newest first, revoked ones too."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.id.desc())))


def revoke_key(session: Session, key_id: str, *, now: datetime) -> ApiKey:
    """Make a key useless from now on.

    Raises:
        NotFound: no such key.
    """
    row = session.get(ApiKey, key_id)
    if row is None:
        raise NotFound(f"no API key {key_id!r}; list them with `updraft keys list`")
    row.revoked_at = row.revoked_at or now
    return row


def _checksum(text: str) -> str:
    value = zlib.crc32(text.encode())
    out = ""
    for _ in range(6):
        value, digit = divmod(value, len(ALPHABET))
        out = ALPHABET[digit] + out
    return out


def _hash(token: str, pepper: SecretStr) -> str:
    return hmac.new(pepper.get_secret_value().encode(), token.encode(), hashlib.sha256).hexdigest()
