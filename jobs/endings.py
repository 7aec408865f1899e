"""How a leased stage ends: done, given back, failed or cancelled, and what follows from that in the
same transaction. Guarded by the lease's token like every other write of a worker.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs import tally
from jobs.errors import FailureReason
from jobs.events import append_event, lock_job
from jobs.ids import new_id
from jobs.leases import Lease, lost
from jobs.logs import redact
from jobs.models import Job, Stage
from jobs.outbox import enqueue_hint
from jobs.settings import Settings
from jobs.states import JobStatus, StageStatus, transition
from jobs.usage import charge

log = logging.getLogger(__name__)


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
    reused: dict[str, Any] | None = None,
) -> None:
    """Mark the stage done and, in the same transaction, queue the next one or end the job.

    Args:
        reused: `{job_id}` of whose outputs these are, where they were there before.

    Raises:
        LeaseLost: the stage is another's; nothing is written.
    """
    job = lock_job(session, lease.job_id)
    _end(
        session,
        lease,
        StageStatus.SUCCEEDED,
        tally.REUSED if reused is not None else tally.SUCCEEDED,
        now=now,
        summary=summary,
        digest=digest,
        uri=uri,
        seconds=seconds,
        error=None,
        finished_at=now,
    )
    data = {"stage": lease.stage, "summary": summary, "seconds": seconds}
    text = f"{lease.stage} done"
    if reused is not None:
        data["reused"] = reused
        source = f"from job {reused['job_id']}" if reused["job_id"] else "made before"
        text = f"{lease.stage} done: its outputs were there, {source}"
    append_event(session, lease.job_id, "stage.succeeded", text, now=now, data=data)
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
        if not end_pausing(session, lease.job_id, now):
            enqueue_hint(session, lease.job_id, following.name, following.needs, now)


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
    _end(
        session,
        lease,
        StageStatus.QUEUED,
        tally.RELEASED,
        now=now,
        not_before=due,
        queued_at=now,
        attempt=lease.attempt - 1,
    )
    data = {"stage": lease.stage, "attempt": lease.attempt}
    append_event(session, lease.job_id, "stage.queued", message, now=now, data=data)
    _wait(session, lease, now=now, due=due)


def restart(
    session: Session, lease: Lease, failure: Failure, *, settings: Settings, now: datetime
) -> None:
    """Start a stage again that asked for it, after the wait of a first retry. Where its checkpoint
    has moved on since it was leased the attempt is given back; where not, it has failed.

    Raises:
        LeaseLost: as above.
    """
    lock_job(session, lease.job_id)
    found = session.scalar(select(Stage.checkpoint).where(Stage.id == lease.stage_id))
    if _step(found) > _step(lease.checkpoint):
        wait = backoff(1, settings)
        text = f"{failure.message}; it goes on from step {_step(found)} in {wait:.0f} s"
        release(session, lease, now=now, message=text, wait=wait)
    else:
        fail(session, lease, failure, settings=settings, now=now)


def cancelled(session: Session, lease: Lease, *, now: datetime) -> None:
    """End the stage and its job after the worker has stopped on request.

    Raises:
        LeaseLost: as above.
    """
    lock_job(session, lease.job_id)
    _end(session, lease, StageStatus.CANCELLED, tally.CANCELLED, now=now, finished_at=now)
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
        "message": redact(failure.message),
        "hint": redact(failure.hint),
        "stage": lease.stage,
        "attempt": lease.attempt,
        "retryable": failure.may_retry,
        "support_id": new_id("sup_", now),
    }
    _log_failure(lease, error)
    if retry:
        wait = backoff(lease.attempt, settings)
        not_before = now + timedelta(seconds=wait)
        values = {"not_before": not_before, "queued_at": now, "error": error}
        _end(session, lease, StageStatus.QUEUED, tally.RETRIED, now=now, **values)
        append_event(
            session,
            lease.job_id,
            "stage.retry",
            f"{lease.stage} failed ({failure.message}); trying again in {wait:.0f} s",
            now=now,
            level="warning",
            data=error,
        )
        _wait(session, lease, now=now, due=not_before)
        return True
    _end(session, lease, StageStatus.FAILED, tally.FAILED, now=now, error=error, finished_at=now)
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


def _log_failure(lease: Lease, error: dict[str, Any]) -> None:
    """Who reports a failure has its support id; the log has it beside the rest."""
    facts = {name: error[name] for name in ("stage", "attempt", "support_id")}
    log.warning("failed: %s", error["reason"], extra={"job_id": lease.job_id, **facts})


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


def _step(checkpoint: dict[str, Any] | None) -> int:
    return -1 if checkpoint is None else int(checkpoint["step"])


def end_pausing(session: Session, job_id: str, now: datetime) -> bool:
    """Make a job that was asked to pause `paused`, now that no worker holds it. Returns whether it
    was asked."""
    paused = transition(
        session, Job, JobStatus.PAUSED, Job.id == job_id, Job.status == JobStatus.PAUSING
    )
    if paused:
        append_event(session, job_id, "job.paused", "paused", now=now)
    return paused


def _end(
    session: Session, lease: Lease, to: StageStatus, outcome: str, *, now: datetime, **values: Any
) -> None:
    """Take the stage from its worker, charge for the time it was held, and count the attempt."""
    seconds = max(0.0, (now - lease.since).total_seconds())
    moved = transition(
        session,
        Stage,
        to,
        Stage.id == lease.stage_id,
        Stage.lease_token == lease.token,
        lease_token=None,
        lease_expires_at=None,
        leased_seconds=Stage.leased_seconds + seconds,
        **values,
    )
    if not moved:
        raise lost(lease)
    charge(session, lease.account, now=now, seconds=seconds, gpus=lease.gpus)
    reason = (values.get("error") or {}).get("reason", "")
    tally.count(session, lease.stage, outcome, reason, seconds)


def _wait(session: Session, lease: Lease, *, now: datetime, due: datetime | None) -> None:
    """Have the job wait for a worker, or for somebody who resumes it."""
    if not end_pausing(session, lease.job_id, now):
        transition(session, Job, JobStatus.QUEUED, Job.id == lease.job_id)
        enqueue_hint(session, lease.job_id, lease.stage, lease.needs, now, due=due)


def _next_stage(session: Session, lease: Lease) -> Stage | None:
    return session.scalars(
        select(Stage)
        .where(Stage.job_id == lease.job_id, Stage.status == StageStatus.PENDING)
        .order_by(Stage.position)
        .limit(1)
    ).first()
