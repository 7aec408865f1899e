"""Who runs a stage: a lease with a fencing token on the stage's row.

Every write of a worker is guarded by its token; when it moves no row the worker is a zombie and
gets `LeaseLost`. Times come from the caller (`now`), so tests need no waiting. An attempt is
counted when the stage is claimed; a worker that stops on request gives it back.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from jobs.errors import FailureReason, LeaseLost
from jobs.events import append_event, lock_job
from jobs.models import Job, Stage
from jobs.outbox import enqueue_hint
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
class Failure:
    """What went wrong with a stage, for a person and for a program."""

    reason: FailureReason
    message: str
    hint: str = ""
    retryable: bool | None = None
    """Overrides what the reason says about trying again."""

    @property
    def may_retry(self) -> bool:
        return self.reason.retryable if self.retryable is None else self.retryable


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


def finish(
    session: Session,
    lease: Lease,
    *,
    now: datetime,
    summary: dict[str, Any],
    digest: str | None = None,
    uri: str | None = None,
    seconds: float | None = None,
    result: dict[str, Any] | None = None,
) -> None:
    """Mark the stage done and, in the same transaction, queue the next one or end the job.

    Raises:
        LeaseLost: the stage is another's; nothing is written.
    """
    job = lock_job(session, lease.job_id)
    _end(
        session,
        lease,
        StageStatus.SUCCEEDED,
        summary=summary,
        digest=digest,
        uri=uri,
        seconds=seconds,
        error=None,
        finished_at=now,
    )
    data = {"stage": lease.stage, "summary": summary, "seconds": seconds}
    append_event(
        session, lease.job_id, "stage.succeeded", f"{lease.stage} done", now=now, data=data
    )
    following = _next_stage(session, lease)
    if following is None:
        transition(
            session,
            Job,
            JobStatus.SUCCEEDED,
            Job.id == lease.job_id,
            result=result,
            finished_at=now,
        )
        append_event(session, lease.job_id, "job.succeeded", "job done", now=now, data=result)
    elif job is not None and job.status == JobStatus.CANCELLING:
        end_cancelled(session, lease.job_id, now)
    else:
        transition(session, Stage, StageStatus.QUEUED, Stage.id == following.id, queued_at=now)
        enqueue_hint(session, lease.job_id, following.name, now)


def release(
    session: Session, lease: Lease, *, now: datetime, message: str, wait: float = 0.0
) -> None:
    """Give the stage back, its attempt not counted: this worker, or a server it needs, goes away.

    Args:
        wait: seconds before another worker may take it.

    Raises:
        LeaseLost: as above.
    """
    job = lock_job(session, lease.job_id)
    if job is not None and job.status == JobStatus.CANCELLING:
        cancelled(session, lease, now=now)
        return
    due = now + timedelta(seconds=wait) if wait else None
    _requeue(session, lease, now=now, not_before=due, attempt=lease.attempt - 1)
    data = {"stage": lease.stage, "attempt": lease.attempt}
    append_event(session, lease.job_id, "stage.queued", message, now=now, data=data)


def cancelled(session: Session, lease: Lease, *, now: datetime) -> None:
    """End the stage and its job after the worker has stopped on request.

    Raises:
        LeaseLost: as above.
    """
    lock_job(session, lease.job_id)
    _end(session, lease, StageStatus.CANCELLED, finished_at=now)
    end_cancelled(session, lease.job_id, now)


def fail(
    session: Session,
    lease: Lease,
    failure: Failure,
    *,
    settings: Settings,
    now: datetime,
    result: dict[str, Any] | None = None,
) -> bool:
    """Queue another attempt with growing waits, or end the job when none is left or it is no use.

    Returns:
        Whether there will be another attempt.

    Raises:
        LeaseLost: as above.
    """
    job = lock_job(session, lease.job_id)
    if job is not None and job.status == JobStatus.CANCELLING:
        cancelled(session, lease, now=now)
        return False
    retry = failure.may_retry and lease.attempt < settings.max_attempts
    error = {
        "reason": failure.reason.value,
        "message": failure.message,
        "hint": failure.hint,
        "stage": lease.stage,
        "attempt": lease.attempt,
        "retryable": failure.may_retry,
    }
    if retry:
        wait = backoff(lease.attempt, settings)
        not_before = now + timedelta(seconds=wait)
        _requeue(session, lease, now=now, not_before=not_before, error=error)
        append_event(
            session,
            lease.job_id,
            "stage.retry",
            f"{lease.stage} failed ({failure.message}); trying again in {wait:.0f} s",
            now=now,
            level="warning",
            data=error,
        )
        return True
    _end(session, lease, StageStatus.FAILED, error=error, finished_at=now)
    append_event(
        session, lease.job_id, "stage.failed", failure.message, now=now, level="error", data=error
    )
    transition(
        session,
        Stage,
        StageStatus.CANCELLED,
        Stage.job_id == lease.job_id,
        Stage.status == StageStatus.PENDING,
    )
    transition(
        session,
        Job,
        JobStatus.FAILED,
        Job.id == lease.job_id,
        error=error,
        result=result,
        finished_at=now,
    )
    append_event(
        session, lease.job_id, "job.failed", failure.message, now=now, level="error", data=error
    )
    return False


def end_cancelled(session: Session, job_id: str, now: datetime) -> None:
    """Make a job that no worker holds `cancelled`, with all that has not ended of it."""
    transition(session, Job, JobStatus.CANCELLED, Job.id == job_id, finished_at=now)
    transition(
        session,
        Stage,
        StageStatus.CANCELLED,
        Stage.job_id == job_id,
        lease_token=None,
        lease_expires_at=None,
    )
    append_event(session, job_id, "job.cancelled", "cancelled", now=now, level="warning")


def backoff(attempt: int, settings: Settings) -> float:
    """Seconds before the next attempt: doubled each time, capped, with 20% of jitter."""
    wait = min(settings.retry_cap_seconds, settings.retry_base_seconds * 2.0 ** (attempt - 1))
    return float(wait * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, not a secret


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
        raise _lost(lease)


def _end(session: Session, lease: Lease, to: StageStatus, **values: Any) -> None:
    moved = transition(
        session,
        Stage,
        to,
        Stage.id == lease.stage_id,
        Stage.lease_token == lease.token,
        lease_token=None,
        lease_expires_at=None,
        **values,
    )
    if not moved:
        raise _lost(lease)


def _requeue(
    session: Session, lease: Lease, *, now: datetime, not_before: datetime | None, **values: Any
) -> None:
    _end(session, lease, StageStatus.QUEUED, not_before=not_before, queued_at=now, **values)
    transition(session, Job, JobStatus.QUEUED, Job.id == lease.job_id)
    enqueue_hint(session, lease.job_id, lease.stage, now, due=not_before)


def _next_stage(session: Session, lease: Lease) -> Stage | None:
    return session.scalars(
        select(Stage)
        .where(Stage.job_id == lease.job_id, Stage.status == StageStatus.PENDING)
        .order_by(Stage.position)
        .limit(1)
    ).first()


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"{lease.stage} of {lease.job_id} is no longer leased to {lease.owner}; its work is dropped"
    )
