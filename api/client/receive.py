"""For who receives webhooks: whether a message is from the service, and of now."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

TOLERANCE = timedelta(minutes=5)


class WebhookRefused(Exception):
    """Not a message that may be acted on."""


def verify_webhook(
    secret: str, headers: Mapping[str, str], body: bytes, *, now: datetime | None = None
) -> dict[str, Any]:
    """The message of a webhook request, once its signature and its time are right.

    The same message may come again, with the same `webhook-id`: act on each id once.

    Args:
        secret: `whsec_…`, as the endpoint's owner got it.
        headers: with names in lower case, or of a type that does not mind.
        body: the bytes as they came.

    Raises:
        WebhookRefused: unsigned, signed with another secret, or too old or too new.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        message_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        signatures = headers["webhook-signature"].split()
        sent = datetime.fromtimestamp(int(timestamp), UTC)
    except (KeyError, ValueError, OverflowError, OSError, binascii.Error) as error:
        raise WebhookRefused("a header is missing or not what it should be") from error
    content = f"{message_id}.{timestamp}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    if not any(hmac.compare_digest(expected.encode(), one.encode()) for one in signatures):
        raise WebhookRefused("no signature is of this secret")
    if abs((now or datetime.now(UTC)) - sent) > TOLERANCE:
        raise WebhookRefused("the message is too old, or a clock is wrong")
    found: dict[str, Any] = json.loads(body)
    return found
