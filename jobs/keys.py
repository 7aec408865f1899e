"""API keys: `upd_` + 40 random characters + 6 of checksum, so that secret scanners know them.

Only HMAC-SHA256(pepper, key) is stored; a key is shown once, when it is made. What a key makes
belongs to its `owner`, which a key keeps when it is rotated.
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
from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from jobs.errors import Conflict, Invalid, NotFound, Unauthorized
from jobs.ids import new_id
from jobs.models import ApiKey

PREFIX = "upd_"
SCOPES = ("jobs:read", "jobs:write", "drafts:read", "drafts:promote", "metrics:read", "admin")
ALPHABET = string.digits + string.ascii_letters
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{46}}")
_USED_EVERY = timedelta(minutes=1)
_BY_HASH = select(ApiKey).where(ApiKey.hash == bindparam("digest"))


def create_key(
    session: Session,
    name: str,
    scopes: Collection[str],
    *,
    pepper: SecretStr,
    now: datetime,
    expires_at: datetime | None = None,
    idempotency_required: bool = False,
    owner: str | None = None,
) -> tuple[ApiKey, str]:
    """Make a key. Returns its row and the key itself, which is kept nowhere.

    Args:
        idempotency_required: refuse its submissions without an idempotency key; for programs.
        owner: whose jobs and drafts it makes and sees; its own when None.

    Raises:
        Invalid: an unknown scope.
    """
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise Invalid(f"unknown scope {', '.join(unknown)}; expected {', '.join(SCOPES)}")
    body = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(40))
    token = body + _checksum(body)
    key_id = new_id("key_", now)
    row = ApiKey(
        id=key_id,
        owner=owner or key_id,
        name=name,
        hint=token[:10],
        hash=_hash(token, pepper),
        scopes=sorted(set(scopes)),
        idempotency_required=idempotency_required,
        created_at=now,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row, token


def authenticate(session: Session, token: str, *, pepper: SecretStr, now: datetime) -> ApiKey:
    """The row of a valid key.

    Raises:
        Unauthorized: malformed, unknown, expired or revoked; which of them is not said.
    """
    refused = Unauthorized("the API key is not valid; send a valid one as Authorization: Bearer")
    if not _FORM.fullmatch(token) or not hmac.compare_digest(_checksum(token[:-6]), token[-6:]):
        raise refused
    digest = _hash(token, pepper)
    row = session.scalars(_BY_HASH, {"digest": digest}).one_or_none()
    if row is None or not hmac.compare_digest(row.hash, digest) or row.revoked_at is not None:
        raise refused
    if row.expires_at is not None and row.expires_at <= now:
        raise refused
    return row


def use_is_noted(key: ApiKey, now: datetime) -> bool:
    """Whether its use of about now is on record already: it is noted once a minute."""
    return key.last_used_at is not None and now - key.last_used_at <= _USED_EVERY


def note_use(session: Session, key: ApiKey, now: datetime) -> None:
    """Put on record that it was used now."""
    session.execute(update(ApiKey).where(ApiKey.id == key.id).values(last_used_at=now))


def list_keys(session: Session) -> list[ApiKey]:
    """All keys, newest first, revoked ones too."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.id.desc())))


def get_key(session: Session, key_id: str, *, owner: str | None = None) -> ApiKey:
    """A key's row; raises `NotFound`, of another owner's too where one is named."""
    row = session.get(ApiKey, key_id)
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(f"no API key {key_id!r}; list them with `updraft keys list`")
    return row


def revoke_key(session: Session, key_id: str, *, now: datetime) -> ApiKey:
    """Make a key useless from now on, and forget the hub token that it was set with.

    Raises:
        NotFound: no such key.
    """
    row = get_key(session, key_id)
    row.revoked_at = row.revoked_at or now
    row.hub_token = row.hub_token_at = None
    return row


def rotate_key(
    session: Session, key_id: str, *, pepper: SecretStr, now: datetime, overlap: timedelta
) -> tuple[ApiKey, str]:
    """Make the key that takes a key's place: the same name, scopes, owner and lifetime, and the hub
    token goes over to it. The former one works for `overlap` longer, so that whoever uses it can
    change over.

    Raises:
        NotFound: no such key.
        Conflict: it is of no use any more; make a new one.
    """
    former = get_key(session, key_id)
    if former.revoked_at is not None or (former.expires_at and former.expires_at <= now):
        raise Conflict(f"key {key_id} is revoked or expired; make a new one")
    lifetime = former.expires_at - former.created_at if former.expires_at else None
    made = create_key(
        session,
        former.name,
        former.scopes,
        pepper=pepper,
        now=now,
        expires_at=now + lifetime if lifetime else None,
        idempotency_required=former.idempotency_required,
        owner=former.owner,
    )
    made[0].hub_token, made[0].hub_token_at = former.hub_token, former.hub_token_at
    former.hub_token = former.hub_token_at = None
    former.expires_at = min(filter(None, (former.expires_at, now + overlap)))
    return made


def _checksum(text: str) -> str:
    value = zlib.crc32(text.encode())
    out = ""
    for _ in range(6):
        value, digit = divmod(value, len(ALPHABET))
        out = ALPHABET[digit] + out
    return out


def _hash(token: str, pepper: SecretStr) -> str:
    return hmac.new(pepper.get_secret_value().encode(), token.encode(), hashlib.sha256).hexdigest()
