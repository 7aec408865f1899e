"""Tokens of a model hub, one for each owner of API keys, encrypted in the row of one of them.

Fernet (AES-128-CBC and HMAC-SHA256) under a key that HKDF-SHA256 derives from the pepper and from
whose token it is: a ciphertext that is moved to another owner's row opens nothing. A new pepper
opens none of them, as it knows none of the API keys: they are set anew.
"""

from __future__ import annotations

import base64
from datetime import datetime

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import SecretStr
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from jobs.errors import Conflict, Invalid
from jobs.models import ApiKey

PURPOSE = b"updraft hub token\x00"


def set_hub_token(
    session: Session, row: ApiKey, token: SecretStr, *, pepper: SecretStr, now: datetime
) -> None:
    """Keep a token with a key, in place of the one that its owner had.

    Raises:
        Conflict: the key is of no use any more, and so would be its token.
    """
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise Conflict(f"key {row.id} is revoked or expired; set the token of one that is in use")
    forget_hub_token(session, row.owner)
    row.hub_token = _fernet(row.owner, pepper).encrypt(token.get_secret_value().encode()).decode()
    row.hub_token_at = now


def forget_hub_token(session: Session, owner: str) -> None:
    """Keep no token of an owner's, whichever of the owner's keys it was set with."""
    for row in session.scalars(select(ApiKey).where(ApiKey.owner == owner)):
        row.hub_token = row.hub_token_at = None


def hub_token_of(
    session: Session, owner: str, *, pepper: SecretStr, now: datetime
) -> SecretStr | None:
    """The token that an owner's jobs fetch with, while the key that it was set with is in use.

    Raises:
        Invalid: it was encrypted under another pepper.
    """
    unexpired = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
    query = (
        select(ApiKey)
        .where(ApiKey.owner == owner, ApiKey.hub_token.is_not(None))
        .where(ApiKey.revoked_at.is_(None), unexpired)
        .order_by(ApiKey.hub_token_at.desc(), ApiKey.id.desc())  # of two set at once, the last
        .limit(1)
    )
    row = session.scalars(query).first()
    if row is None or row.hub_token is None:
        return None
    try:
        return SecretStr(_fernet(owner, pepper).decrypt(row.hub_token).decode())
    except InvalidToken:
        text = (
            f"the hub token of {row.id} cannot be opened: the pepper is another than when it was "
        )
        raise Invalid(f"{text}set; PUT /v1/api-keys/{row.id}/hub-token again") from None


def _fernet(owner: str, pepper: SecretStr) -> Fernet:
    secret = pepper.get_secret_value().encode()
    key = HKDF(SHA256(), 32, salt=None, info=PURPOSE + owner.encode()).derive(secret)
    return Fernet(base64.urlsafe_b64encode(key))
