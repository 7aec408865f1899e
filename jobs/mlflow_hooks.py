"""What MLflow says of its registry, and the attachment that follows from a new version.

MLflow signs as the Standard Webhooks do, with headers of its own and the secret's text as the key:
HMAC-SHA256 over `delivery id.timestamp.body` (`mlflow.webhooks.delivery`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from sqlalchemy.orm import Session

from jobs import service
from jobs.attach_policy import with_defaults
from jobs.attachments import get_attachment
from jobs.errors import IdempotencyMismatch, Invalid, Unauthorized
from jobs.settings import Settings
from jobs.spec import JobSpec, parse_spec

FRESH_S = 300
"""How far a message's time may be from ours: what is older may have been caught and sent again."""
CREATED = ("model_version", "created")
OURS = ("draft_id", "dft_")
"""Tag of the versions that are drafts of such a service, and how it begins: none of them gets a
draft."""


class ModelVersion(BaseModel):
    """A version of a registered model, as an event or a search has it."""

    name: str
    version: str
    tags: dict[str, str] = {}


class Event(BaseModel):
    """The body of a message."""

    entity: str
    action: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """What came of a message: the attachment's id, or why there is none."""

    attachment_id: str | None
    why: str = ""
    replayed: bool = False


def verify(
    secret: SecretStr,
    *,
    signature: str | None,
    timestamp: str | None,
    delivery_id: str | None,
    body: bytes,
    now: datetime,
) -> None:
    """Refuse what MLflow has not signed, or not within the last minutes.

    Raises:
        Unauthorized: which of the two it is, is not said.
    """
    refused = Unauthorized("not signed by MLflow with UPDRAFT_MLFLOW_HOOK_SECRET, or too old")
    if not signature or not timestamp or not delivery_id:
        raise refused
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    digest = hmac.digest(secret.get_secret_value().encode(), signed, hashlib.sha256)
    expected = f"v1,{base64.b64encode(digest).decode()}"
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise refused
    if not timestamp.isdecimal() or abs(now.timestamp() - int(timestamp)) > FRESH_S:
        raise refused


def take(session: Session, body: bytes, *, settings: Settings, now: datetime) -> Taken:
    """Attach a draft to the version that an event tells of.

    Raises:
        Invalid: the body is no event of MLflow.
        Invalid, QuotaExceeded: as `attach_version`.
    """
    try:
        event = Event.model_validate_json(body)
        if (event.entity, event.action) != CREATED:
            return Taken(None, f"{event.entity}.{event.action} asks for nothing")
        made = ModelVersion.model_validate(event.data)
    except ValidationError:
        raise Invalid("expected an event of MLflow: entity, action and data") from None
    return attach_version(session, made, settings=settings, now=now)


def attach_version(
    session: Session, made: ModelVersion, *, settings: Settings, now: datetime
) -> Taken:
    """Attach a draft to a version, once for each, however often and by whom it is told of.

    Raises:
        Invalid: its name or number is none that a target may have; the policy is none.
        QuotaExceeded: as `service.submit`.
    """
    if why := left_out(made, settings):
        return Taken(None, why)
    target = f"models:/{made.name}/{made.version}"
    try:
        submission = service.submit(
            session,
            hook_spec(settings, target),
            settings=settings,
            now=now,
            owner=settings.mlflow_hook_owner,
            sees=settings.mlflow_hook_owner,
            idempotency_key=f"mlflow-{hashlib.sha256(target.encode()).hexdigest()}",
        )
    except IdempotencyMismatch:
        return Taken(None, f"{target} was attached under another policy before")
    attachment, _ = get_attachment(session, submission.job.id)
    return Taken(attachment.id, replayed=submission.replayed)


def left_out(made: ModelVersion, settings: Settings) -> str:
    """Why a version gets no draft, if it gets none."""
    if not any(fnmatchcase(made.name, one) for one in settings.mlflow_hook_names):
        return f"{made.name} is not among UPDRAFT_MLFLOW_HOOK_NAMES"
    tag, prefix = OURS
    return "it is a draft of this service" if made.tags.get(tag, "").startswith(prefix) else ""


def hook_spec(settings: Settings, target: str) -> JobSpec:
    """The attachment of a version under the configured policy.

    Raises:
        InvalidSpec: the policy file is none, or no policy.
    """
    path = settings.mlflow_hook_policy
    return parse_spec(with_defaults(target, {} if path is None else _policy(path)))


def _policy(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as e:
        raise Invalid(f"UPDRAFT_MLFLOW_HOOK_POLICY: {path} cannot be read: {e}") from None
    if not isinstance(found, dict):
        raise Invalid(f"UPDRAFT_MLFLOW_HOOK_POLICY: {path} has no keys; expected those of a policy")
    return found
