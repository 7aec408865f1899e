"""Webhook endpoints and what was sent to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import Answer, Body
from jobs.webhook_events import EventType

Url = Annotated[
    str, Field(min_length=1, max_length=2048, examples=["https://ci.example.com/hooks/updraft"])
]
Text = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
Events = Annotated[tuple[EventType, ...], Field(max_length=64)]


class EndpointBody(Body):
    """An endpoint to make."""

    url: Url
    """`https://` and public, unless `UPDRAFT_WEBHOOK_HOSTS` names its host."""
    events: Events = ()
    """Types it wants; all of them when empty."""
    description: Text = ""
    all_owners: bool = False
    """Everybody's jobs and drafts; for administrators."""


class EndpointPatch(Body):
    """What to change of an endpoint; what is left out or null stays."""

    url: Url | None = None
    events: Events | None = None
    description: Text | None = None
    enabled: bool | None = None


class EndpointView(Answer):
    """A URL that is told of jobs and drafts."""

    id: Annotated[str, Field(examples=["whe_01kb8m2v9x3tq7c5"])]
    url: str
    events: list[str]
    """Types it wants; all of them when empty."""
    description: str
    all_owners: bool
    enabled: bool
    disabled_at: datetime | None = None
    disabled_reason: str | None = None
    failing_since: datetime | None = None
    """First failure after the last delivery that went well."""
    rotated_at: datetime | None = None
    """When it got its present secret; the former one signs for a day more."""
    created_at: datetime


class EndpointWithSecret(EndpointView):
    """An endpoint that has just got a secret."""

    secret: Annotated[str, Field(examples=["whsec_C2FVsBQIhrscChlQIMV…"])]
    """What its deliveries are signed with. It is shown here and never again."""


class EndpointList(Answer):
    """Endpoints, newest first."""

    data: list[EndpointView]


class DeliveryView(Answer):
    """One message for an endpoint."""

    id: Annotated[str, Field(examples=["msg_01kb8m2v9x3tq7c5"])]
    """`webhook-id`, the same at every attempt."""
    type: Annotated[str, Field(examples=["job.succeeded"])]
    status: str
    """pending, delivered or failed; more may come."""
    attempts: int
    next_attempt_at: datetime | None = None
    response_status: int | None = None
    response: str | None = None
    """The beginning of the last answer."""
    error: str | None = None
    """Why the last attempt failed."""
    created_at: datetime
    attempted_at: datetime | None = None
    body: dict[str, Any]
    """What is sent."""


class DeliveryPage(Answer):
    """One page of messages, newest first."""

    data: list[DeliveryView]
    has_more: bool
    next: str | None = None
    """Cursor for `after`; empty on the last page."""
