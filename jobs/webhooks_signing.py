"""Signatures of the Standard Webhooks specification: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime

from jobs.keys_derived import derived
from jobs.settings import Settings

PREFIX = "whsec_"


def signing_secret(settings: Settings, endpoint_id: str, generation: int) -> bytes:
    """The secret of an endpoint: derived, so that the database holds none."""
    return derived(settings, "webhook", endpoint_id, generation)


def shown(secret: bytes) -> str:
    """A secret as its owner gets it."""
    return PREFIX + base64.b64encode(secret).decode()


def signed_headers(
    secrets: Sequence[bytes], message_id: str, body: bytes, now: datetime
) -> dict[str, str]:
    """The headers of one attempt; one signature for each secret that holds."""
    timestamp = str(int(now.timestamp()))
    content = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{_sign(secret, content)}" for secret in secrets),
    }


def _sign(secret: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
