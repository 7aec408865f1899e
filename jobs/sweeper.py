"""Puts right what nobody else will: leases that ran out, hints that got lost, stops unanswered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.endings import Failure, end_cancelled, fail
from jobs.errors import FailureReason, LeaseLost
from jobs.events import lock_job
from jobs.leases import Lease
from jobs.models import Job, Outbox, OutboxKind, Stage
from jobs.outbox import enqueue_hint, forget_sent
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.states import JobStatus, StageStatus


@dataclass(frozen=True)
class Swept:
    """How much a sweep put right."""

    expired: int
    resent: int
    cancelled: int


def sweep(db: Database, settings: Settings, now: datetime) -> Swept:
    """One round. Idempotent, each job in a transaction of its own; several sweepers do no harm."""
    with db.read() as session:
        expired = _expired(session, now)
        silent = _silent(session, settings, now)
        orphans = _orphans(session)
    done = sum(_expire(db, lease, settings, now) for lease in expired)
    for job_id, stage in silent:
        with db.write() as session:
            enqueue_hint(session, job_id, stage, now)
    stopped = sum(_stop(db, job_id, now) for job_id in orphans)
    with db.write() as session:
        forget_sent(session, now)
    return Swept(done, len(silent), stopped)


def _expired(session: Session, now: datetime) -> list[Lease]:
    query = (
        select(Stage, Job)
        .join(Job, Job.id == Stage.job_id)
        .where(Stage.status == StageStatus.RUNNING, Stage.lease_expires_at < now)
    )
    return [
        Lease(
            job_id=job.id,
            stage_id=stage.id,
            stage=stage.name,
            token=stage.lease_token or "",
            owner=stage.lease_owner or "",
            attempt=stage.attempt,
            spec=JobSpec.model_validate(job.spec),
            checkpoint=stage.checkpoint,
        )
        for stage, job in session.execute(query)
    ]


def _expire(db: Database, lease: Lease, settings: Settings, now: datetime) -> bool:
    failure = Failure(
        FailureReason.WORKER_LOST,
        f"worker {lease.owner} was not heard of for {settings.lease_seconds:g} s",
        "see that worker's log; the stage goes on from its last checkpoint",
    )
    with db.write() as session:
        lock_job(session, lease.job_id)
        still = select(Stage.id).where(
            Stage.id == lease.stage_id,
            Stage.lease_token == lease.token,
            Stage.lease_expires_at < now,
        )
        if session.scalar(still) is None:
            return False
        try:
            fail(session, lease, failure, settings=settings, now=now)
        except LeaseLost:
            return False
        return True


def _silent(session: Session, settings: Settings, now: datetime) -> list[tuple[str, str]]:
    """Stages that could run, have waited long, and have had no hint lately."""
    before = now - timedelta(seconds=settings.resend_seconds)
    hinted = exists().where(
        Outbox.job_id == Stage.job_id,
        Outbox.kind == OutboxKind.HINT,
        or_(Outbox.sent_at.is_(None), Outbox.sent_at > before),
    )
    query = (
        select(Stage.job_id, Stage.name)
        .join(Job, Job.id == Stage.job_id)
        .where(
            Stage.status == StageStatus.QUEUED,
            Job.status.in_((JobStatus.QUEUED, JobStatus.RUNNING)),
            func.coalesce(Stage.not_before, Stage.queued_at) < before,
            ~hinted,
        )
    )
    return [(job_id, name) for job_id, name in session.execute(query)]


def _orphans(session: Session) -> list[str]:
    """Jobs that wait for a worker to stop, while no worker holds a stage of theirs."""
    held = exists().where(Stage.job_id == Job.id, Stage.status == StageStatus.RUNNING)
    return list(session.scalars(select(Job.id).where(Job.status == JobStatus.CANCELLING, ~held)))


def _stop(db: Database, job_id: str, now: datetime) -> bool:
    with db.write() as session:
        job = lock_job(session, job_id)
        if job is None or job.status != JobStatus.CANCELLING:
            return False
        end_cancelled(session, job_id, now)
        return True
