"""API keys, and what they have used."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from api.schemas.base import Answer, Body

Scope = Literal["jobs:read", "jobs:write", "drafts:read", "drafts:promote", "metrics:read", "admin"]


class KeyBody(Body):
    """A key to make."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
    """Whose it is or what for."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=6)] = (
        "jobs:read",
        "jobs:write",
        "drafts:read",
    )
    """What it may do; `admin` is everything, for everybody's jobs."""
    days: Annotated[int, Field(ge=1, le=3650)] | None = None
    """Days until it expires; never when empty."""
    idempotency_required: bool = False
    """A program's key: what it submits must carry an `Idempotency-Key`."""


class RotateBody(Body):
    """How a key is replaced."""

    overlap_hours: Annotated[float, Field(ge=0, le=24 * 90)] = 24
    """How long the former key still works."""


def _hub_token(value: SecretStr) -> SecretStr:
    """What is redacted wherever it is printed: only that form is taken."""
    if not re.fullmatch(r"hf_[A-Za-z0-9]{8,}", value.get_secret_value()):
        raise ValueError("expected a token of the hub: hf_ and letters or digits")
    return value


class HubTokenBody(Body):
    """A token of the model hub. It is kept encrypted, and no answer ever has it."""

    token: Annotated[
        SecretStr,
        Field(max_length=256, examples=["hf_xxxxxxxxxxxxxxxx"]),
        AfterValidator(_hub_token),
    ]


class KeyView(Answer):
    """An API key, without the key."""

    id: Annotated[str, Field(examples=["key_01kb8m2v9x3tq7c5"])]
    owner: str
    """Whose jobs and drafts it makes and sees; kept by the keys it is rotated to."""
    name: str
    hint: str
    """How the key begins."""
    scopes: list[str]
    idempotency_required: bool
    hub_token_at: datetime | None = None
    """When its hub token was set; empty where it has none."""
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class NewKey(KeyView):
    """A key that was just made."""

    key: str
    """The key itself. It is shown here and never again."""


class KeyList(Answer):
    """All keys, newest first, revoked ones too."""

    data: list[KeyView]


class UsageDay(Answer):
    """What the workers have done for an owner on one UTC day."""

    owner: str
    day: date
    worker_hours: float
    gpu_hours: float


class UsageView(Answer):
    """What an owner has now, and has used."""

    owner: str
    jobs: dict[str, int]
    """How many jobs, by status."""
    running_stages: int
    today: UsageDay
    """Stages that still run counted up to now."""
    stored_bytes: int
    """Stage outputs kept in the object store."""
    limits: dict[str, float | None]
    """max_active, max_running, gpu_hours_per_day, storage_gb and max_priority; empty is none."""
    days: list[UsageDay]
    """Days of the period, newest first; stages count when they end."""
