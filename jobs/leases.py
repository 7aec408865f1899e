"""Who runs a stage: a lease with a fencing token on the stage's row.

Every write of a worker is guarded by its token; when it moves no row the worker is a zombie and
gets `LeaseLost`. Times come from the caller (`now`), so tests need no waiting. An attempt is
counted when the stage is claimed; a worker that stops on request gives it back.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from jobs.errors import LeaseLost
from jobs.events import append_event, lock_job
from jobs.models import Job, Stage
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.states import JobStatus, StageStatus, transition

CANDIDATES = 8
"""Stages a claim looks at before it gives up; rivals take the first ones."""


@dataclass(frozen=True)
class Lease:
    """A stage that this worker owns until it expires or ends."""

    job_id: str
    stage_id: int
    stage: str
    token: str
    owner: str
    attempt: int
    spec: JobSpec
    checkpoint: dict[str, Any] | None


@dataclass(frozen=True)
class Event:
    """An event a worker wants to add."""

    type: str
    message: str
    level: str = "info"
    data: dict[str, Any] | None = None


def claim(
    session: Session,
    owner: str,
    *,
    settings: Settings,
    now: datetime,
    stages: Sequence[str] | None = None,
) -> Lease | None:
    """Take the best eligible stage: of the oldest job that waits. None when there is none."""
    query = (
        select(Stage.id, Stage.job_id)
        .join(Job, Job.id == Stage.job_id)
        .where(
            Stage.status == StageStatus.QUEUED,
            or_(Stage.not_before.is_(None), Stage.not_before <= now),
            Job.status.in_((JobStatus.QUEUED, JobStatus.RUNNING)),
        )
        .order_by(Job.id, Stage.position)
        .limit(CANDIDATES)
    )
    if stages is not None:
        query = query.where(Stage.name.in_(stages))
    for stage_id, job_id in session.execute(query).all():
        if lease := _take(session, stage_id, job_id, owner, settings, now):
            return lease
    return None


def heartbeat(session: Session, lease: Lease, *, settings: Settings, now: datetime) -> bool:
    """Renew the lease. Returns whether the job has been asked to stop.

    Raises:
        LeaseLost: another worker owns the stage, or nobody may.
    """
    _guarded(session, lease, lease_expires_at=now + timedelta(seconds=settings.lease_seconds))
    asked = session.scalar(select(Job.cancel_requested_at).where(Job.id == lease.job_id))
    return asked is not None


def report(
    session: Session,
    lease: Lease,
    *,
    now: datetime,
    progress: dict[str, Any] | None = None,
    checkpoint: dict[str, Any] | None = None,
    events: Sequence[Event] = (),
) -> None:
    """Write progress, a checkpoint and events of the stage.

    Raises:
        LeaseLost: as above; nothing is written.
    """
    lock_job(session, lease.job_id)
    values = {"progress": progress, "checkpoint": checkpoint}
    values = {k: v for k, v in values.items() if v is not None}
    _guarded(session, lease, **values)
    for e in events:
        data = {"stage": lease.stage, **(e.data or {})}
        append_event(session, lease.job_id, e.type, e.message, now=now, level=e.level, data=data)
    if values and not events:
        session.execute(update(Job).where(Job.id == lease.job_id).values(version=Job.version + 1))


def _take(
    session: Session, stage_id: int, job_id: str, owner: str, settings: Settings, now: datetime
) -> Lease | None:
    job = lock_job(session, job_id)
    if job is None or job.status not in (JobStatus.QUEUED, JobStatus.RUNNING):
        return None
    token = secrets.token_hex(16)
    taken = transition(
        session,
        Stage,
        StageStatus.RUNNING,
        Stage.id == stage_id,
        lease_token=token,
        lease_owner=owner,
        lease_expires_at=now + timedelta(seconds=settings.lease_seconds),
        attempt=Stage.attempt + 1,
        started_at=now,
        progress=None,
    )
    if not taken:
        return None
    transition(session, Job, JobStatus.RUNNING, Job.id == job_id, started_at=job.started_at or now)
    stage = session.get_one(Stage, stage_id, populate_existing=True)
    append_event(
        session,
        job_id,
        "stage.running",
        f"{stage.name} started",
        now=now,
        data={"stage": stage.name, "attempt": stage.attempt, "worker": owner},
    )
    return Lease(
        job_id=job_id,
        stage_id=stage_id,
        stage=stage.name,
        token=token,
        owner=owner,
        attempt=stage.attempt,
        spec=JobSpec.model_validate(job.spec),
        checkpoint=stage.checkpoint,
    )


def _guarded(session: Session, lease: Lease, **values: Any) -> None:
    """Update columns of the stage, if the lease still holds."""
    statement = (
        update(Stage)
        .where(Stage.id == lease.stage_id, Stage.lease_token == lease.token)
        .values(**(values or {"lease_owner": lease.owner}))
        .execution_options(synchronize_session=False)
    )
    result: Any = session.execute(statement)
    if not result.rowcount:
        raise lost(lease)


def lost(lease: Lease) -> LeaseLost:
    """The error of a worker that writes without owning the stage."""
    return LeaseLost(
        f"{lease.stage} of {lease.job_id} is no longer leased to {lease.owner}; its work is dropped"
    )
