"""Rows of the database as the API's answers, where these say more or less than the row does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.schemas import (
    CheckpointView,
    DeliveryView,
    DraftView,
    EndpointView,
    JobView,
    StageView,
    UsageDay,
    UsageView,
)
from jobs.drafts import champions
from jobs.models import Draft, Job
from jobs.quotas import limits_of, stored_bytes
from jobs.series import Checkpoint
from jobs.service import stage_rows
from jobs.settings import Settings
from jobs.store import ObjectStore
from jobs.usage import Standing, list_usage, standings
from jobs.webhooks_tables import WebhookDelivery, WebhookEndpoint

_MADE = ("stages", "result", "artifacts")
"""Fields of a job's view that are not its columns as they are."""


def job_view(job: Job, stages: Sequence[Any] | None = None) -> JobView:
    """A job with its stages: those given, or those that were loaded with it."""
    facts = {name: getattr(job, name) for name in JobView.model_fields if name not in _MADE}
    result = dict(job.result) if job.result else None
    artifacts = sorted(result.pop("artifacts", {})) if result else []
    made = {"stages": job.stages if stages is None else stages, "result": result}
    return JobView.model_validate({**facts, **made, "artifacts": artifacts})


def job_views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    """Jobs of a page."""
    found = stage_rows(session, jobs, *StageView.model_fields)
    return [job_view(job, found[job.id]) for job in jobs]


def checkpoint_view(found: Checkpoint) -> CheckpointView:
    return CheckpointView(
        stage=found.stage,
        step=found.step,
        created_at=found.at,
        size=found.size,
        metrics=found.metrics,
        resumable=found.resumable,
    )


def draft_views(session: Session, drafts: list[Draft], store: ObjectStore) -> list[DraftView]:
    """Drafts, and the champion among whose rivals each is."""
    found = champions(session, drafts)
    return [
        DraftView.model_validate(draft).model_copy(
            update={"champion": found.get(draft.id), "uri": store.uri(draft.uri)}
        )
        for draft in drafts
    ]


def draft_view(session: Session, draft: Draft, store: ObjectStore) -> DraftView:
    """One of them."""
    return draft_views(session, [draft], store)[0]


def usage_view(
    session: Session, owner: str, settings: Settings, since: date, now: datetime
) -> UsageView:
    """How an owner stands, and its days since one."""
    counts = select(Job.status, func.count()).where(Job.owner == owner).group_by(Job.status)
    stand = standings(session, now, [owner]).get(owner, Standing())
    return UsageView(
        owner=owner,
        jobs={status.value: count for status, count in session.execute(counts).all()},
        running_stages=stand.running,
        today=_usage_day(owner, now.date(), stand.seconds, stand.gpu_seconds),
        stored_bytes=stored_bytes(session, owner),
        limits=vars(limits_of(session, [owner], settings)[owner]),
        days=[
            _usage_day(owner, u.day, u.seconds, u.gpu_seconds)
            for u in list_usage(session, owner=owner, since=since)
        ],
    )


def endpoint_view(endpoint: WebhookEndpoint) -> EndpointView:
    return EndpointView(
        id=endpoint.id,
        url=endpoint.url,
        events=endpoint.events,
        description=endpoint.description,
        all_owners=endpoint.all_owners,
        enabled=endpoint.disabled_at is None,
        disabled_at=endpoint.disabled_at,
        disabled_reason=endpoint.disabled_reason,
        failing_since=endpoint.failing_since,
        rotated_at=endpoint.rotated_at,
        created_at=endpoint.created_at,
    )


def delivery_view(found: WebhookDelivery) -> DeliveryView:
    return DeliveryView(
        id=found.id,
        type=found.type,
        status=found.status,
        attempts=found.attempts,
        next_attempt_at=found.next_attempt_at,
        response_status=found.response_status,
        response=found.response,
        error=found.error,
        created_at=found.created_at,
        attempted_at=found.attempted_at,
        body=json.loads(found.body),
    )


def _usage_day(owner: str, day: date, seconds: float, gpu_seconds: float) -> UsageDay:
    return UsageDay(
        owner=owner,
        day=day,
        worker_hours=round(seconds / 3600, 4),
        gpu_hours=round(gpu_seconds / 3600, 4),
    )
