"""Webhooks by the Standard Webhooks rules: who wants to hear of what, and how a delivery goes on.

A message is written with the change it tells of, and so is the outbox record of its first attempt:
one record is one attempt. An attempt that fails writes the record of the next one, due later.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, delete, or_, select
from sqlalchemy.orm import Session, joinedload

from jobs.errors import Conflict, NotFound, QuotaExceeded
from jobs.ids import new_id
from jobs.models import Job
from jobs.outbox import enqueue_webhook
from jobs.pages import Page, page_of
from jobs.webhooks_tables import DeliveryStatus, WebhookDelivery, WebhookEndpoint

TEST = "webhook.test"

MAX_ENDPOINTS = 20
"""Endpoints of one owner."""
WAITS_S = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Before the second attempt and each one after it, as the specification suggests: three days."""
GIVE_UP = timedelta(days=3)
"""An endpoint that has answered nothing for so long when a message is given up is disabled."""
KEEP = timedelta(days=30)
OVERLAP = timedelta(hours=24)
"""How long the former secret signs, too, after a rotation."""

_LISTENING = select(WebhookEndpoint).where(
    or_(WebhookEndpoint.owner == bindparam("owner"), WebhookEndpoint.all_owners),
    WebhookEndpoint.disabled_at.is_(None),
)


@dataclass(frozen=True)
class Outcome:
    """How an attempt went."""

    status: int | None = None
    """HTTP status; None when there was no answer."""
    response: str = ""
    error: str = ""
    retry_after: float | None = None
    """Seconds that the receiver asks to wait."""

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def announce_job(
    session: Session, job: Job, type: str, data: dict[str, Any], *, now: datetime
) -> None:
    """Tell of a job's event, which is one of `JOB_EVENTS`."""
    facts = {"job_id": job.id, "target": job.target, "labels": job.labels, **data}
    announce(session, type, job.owner, facts, job_id=job.id, now=now)


def announce(
    session: Session,
    type: str,
    owner: str,
    data: dict[str, Any],
    *,
    job_id: str | None,
    now: datetime,
) -> None:
    """Write a message for every endpoint that wants it."""
    for endpoint in session.scalars(_LISTENING, {"owner": owner}):
        if not endpoint.events or type in endpoint.events:
            _write(session, endpoint, type, data, job_id, now)


def get_endpoint(session: Session, endpoint_id: str, owner: str | None = None) -> WebhookEndpoint:
    """An endpoint; raises `NotFound` when there is none, or it is another owner's."""
    endpoint = session.get(WebhookEndpoint, endpoint_id, populate_existing=True)
    if endpoint is None or (owner is not None and endpoint.owner != owner):
        raise NotFound(f"no webhook endpoint {endpoint_id!r}; GET /v1/webhook-endpoints lists them")
    return endpoint


def list_endpoints(session: Session, owner: str | None) -> list[WebhookEndpoint]:
    """Endpoints of an owner, or everybody's, newest first."""
    query = select(WebhookEndpoint).order_by(WebhookEndpoint.id.desc())
    if owner is not None:
        query = query.where(WebhookEndpoint.owner == owner)
    return list(session.scalars(query))


def add_endpoint(
    session: Session,
    owner: str,
    url: str,
    *,
    events: list[str],
    description: str,
    all_owners: bool,
    now: datetime,
) -> WebhookEndpoint:
    """Make an endpoint.

    Raises:
        QuotaExceeded: the owner has as many as there may be.
    """
    if len(list_endpoints(session, owner)) >= MAX_ENDPOINTS:
        raise QuotaExceeded(f"{MAX_ENDPOINTS} webhook endpoints are allowed; delete one")
    endpoint = WebhookEndpoint(
        id=new_id("whe_", now),
        owner=owner,
        url=url,
        events=sorted(set(events)),
        description=description,
        all_owners=all_owners,
        created_at=now,
        version=1,
        secret_generation=1,
    )
    session.add(endpoint)
    session.flush()
    return endpoint


def change_endpoint(endpoint: WebhookEndpoint, now: datetime, changes: dict[str, Any]) -> None:
    """Write `url`, `events`, `description` or `enabled`."""
    for name in ("url", "description"):
        if name in changes:
            setattr(endpoint, name, changes[name])
    if "events" in changes:
        endpoint.events = sorted(set(changes["events"]))
    if "enabled" in changes:
        disabled = None if changes["enabled"] else endpoint.disabled_at or now
        endpoint.disabled_at, endpoint.failing_since = disabled, None
        endpoint.disabled_reason = "disabled by its owner" if disabled else None
    endpoint.version += 1


def rotate_secret(endpoint: WebhookEndpoint, now: datetime) -> None:
    """Sign with a new secret; for a day, with the former one too."""
    endpoint.secret_generation += 1
    endpoint.rotated_at = now
    endpoint.version += 1


def generations(endpoint: WebhookEndpoint, now: datetime) -> list[int]:
    """Which of the endpoint's secrets sign now, the newest first."""
    newest = endpoint.secret_generation
    overlap = endpoint.rotated_at is not None and now < endpoint.rotated_at + OVERLAP
    return [newest, newest - 1] if overlap else [newest]


def test_endpoint(session: Session, endpoint: WebhookEndpoint, now: datetime) -> WebhookDelivery:
    """Write a message that says nothing; raises `Conflict` when the endpoint is disabled."""
    _refuse_disabled(endpoint)
    return _write(session, endpoint, TEST, {"endpoint_id": endpoint.id}, None, now)


def list_deliveries(
    session: Session,
    endpoint_id: str,
    *,
    status: DeliveryStatus | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[WebhookDelivery]:
    """Messages for an endpoint, newest first."""
    query = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
    if status is not None:
        query = query.where(WebhookDelivery.status == status)
    if after is not None:
        query = query.where(WebhookDelivery.id < after)
    rows = list(session.scalars(query.order_by(WebhookDelivery.id.desc()).limit(limit + 1)))
    return page_of(rows, limit, lambda row: row.id)


def get_delivery(session: Session, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
    """A message for an endpoint; raises `NotFound`."""
    query = select(WebhookDelivery).where(
        WebhookDelivery.id == delivery_id, WebhookDelivery.endpoint_id == endpoint_id
    )
    found = session.scalars(query.options(joinedload(WebhookDelivery.endpoint))).one_or_none()
    if found is None:
        raise NotFound(f"no delivery {delivery_id!r} of {endpoint_id}")
    return found


def redeliver(session: Session, found: WebhookDelivery, now: datetime) -> None:
    """Send a message again, with the same id, and with all attempts before it.

    Raises:
        Conflict: it is still being tried, or the endpoint is disabled.
    """
    _refuse_disabled(found.endpoint)
    if found.status == DeliveryStatus.PENDING:
        raise Conflict(f"delivery {found.id} is still being tried; wait until it has ended")
    found.status, found.attempts, found.next_attempt_at = DeliveryStatus.PENDING, 0, now
    enqueue_webhook(session, found.id, now)


def to_send(session: Session, delivery_id: str) -> WebhookDelivery | None:
    """A message and its endpoint, if it is still to be sent."""
    query = (
        select(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id)
        .options(joinedload(WebhookDelivery.endpoint))
        .with_for_update(of=WebhookDelivery)
    )
    found = session.scalars(query).one_or_none()
    return found if found is not None and found.status == DeliveryStatus.PENDING else None


def record(session: Session, delivery_id: str, outcome: Outcome, now: datetime) -> None:
    """Write down how an attempt went, and have the next one made when it failed."""
    found = to_send(session, delivery_id)
    if found is None:
        return
    endpoint = found.endpoint
    found.attempts += 1
    found.attempted_at = now
    found.response_status, found.response = outcome.status, outcome.response
    found.error = None if outcome.delivered else outcome.error or f"HTTP {outcome.status}"
    found.next_attempt_at = None
    if outcome.delivered:
        found.status, endpoint.failing_since = DeliveryStatus.DELIVERED, None
        return
    endpoint.failing_since = endpoint.failing_since or now
    if outcome.status == 410:
        _disable(endpoint, "it answered 410 Gone", now)
    if endpoint.disabled_at is not None or found.attempts > len(WAITS_S):
        found.status = DeliveryStatus.FAILED
        if now - endpoint.failing_since >= GIVE_UP:
            _disable(endpoint, f"nothing was delivered since {endpoint.failing_since:%F %R}", now)
        return
    found.next_attempt_at = now + timedelta(seconds=_wait(found.attempts, outcome.retry_after))
    enqueue_webhook(session, found.id, now, due=found.next_attempt_at)


def forget(session: Session, now: datetime) -> None:
    """Drop messages of more than a month ago."""
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.created_at < now - KEEP))


def _write(
    session: Session,
    endpoint: WebhookEndpoint,
    type: str,
    data: dict[str, Any],
    job_id: str | None,
    now: datetime,
) -> WebhookDelivery:
    body = {"type": type, "timestamp": now.isoformat(), "data": data}
    found = WebhookDelivery(
        id=new_id("msg_", now),
        endpoint_id=endpoint.id,
        type=type,
        body=json.dumps(body, separators=(",", ":")),
        status=DeliveryStatus.PENDING,
        attempts=0,
        next_attempt_at=now,
        created_at=now,
    )
    session.add(found)
    session.flush()
    enqueue_webhook(session, found.id, now, job_id=job_id)
    return found


def _wait(attempts: int, asked: float | None) -> float:
    """With jitter that only lengthens: all waits together are longer than `GIVE_UP`."""
    wait = WAITS_S[attempts - 1] * random.uniform(1.0, 1.2)  # noqa: S311 - jitter, not a secret
    return min(max(wait, asked or 0.0), WAITS_S[-1] * 1.2)


def _disable(endpoint: WebhookEndpoint, reason: str, now: datetime) -> None:
    endpoint.disabled_at, endpoint.disabled_reason = endpoint.disabled_at or now, reason
    endpoint.version += 1


def _refuse_disabled(endpoint: WebhookEndpoint) -> None:
    if endpoint.disabled_at is not None:
        raise Conflict(f"endpoint {endpoint.id} is disabled ({endpoint.disabled_reason})")
