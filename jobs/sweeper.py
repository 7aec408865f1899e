"""Puts right what nobody else will: leases that ran out, hints that got lost, stops unanswered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from jobs import tally
from jobs.db import Database
from jobs.endings import Failure, end_cancelled, end_pausing, fail
from jobs.errors import FailureReason, LeaseLost
from jobs.events import lock_job
from jobs.leases import Lease, lease_of
from jobs.models import Job, Outbox, OutboxKind, Stage, Worker
from jobs.outbox import enqueue_hint, forget_sent
from jobs.settings import Settings
from jobs.shares import RUNNABLE
from jobs.states import JobStatus, StageStatus
from jobs.waiting import alive, note_waiting

FORGET_WORKERS = timedelta(days=1)


@dataclass(frozen=True)
class Swept:
    """How much a sweep put right."""

    expired: int
    resent: int
    stopped: int
    """Jobs cancelled or paused that no worker held."""


def sweep(db: Database, settings: Settings, now: datetime) -> Swept:
    """One round. Idempotent, each job in a transaction of its own; several sweepers do no harm."""
    with db.read() as session:
        expired = _expired(session, now)
        silent = _silent(session, settings, now)
        orphans = _orphans(session)
    done = sum(_expire(db, lease, settings, now) for lease in expired)
    for stage in silent:
        with db.write() as session:
            enqueue_hint(session, stage.job_id, stage.name, stage.needs, now)
    stopped = sum(_stop(db, job_id, now) for job_id in orphans)
    note_waiting(db, settings, now)
    with db.write() as session:
        forget_sent(session, now)
        tally.sign(session, tally.RELAY, now)
        session.execute(delete(Worker).where(Worker.seen_at < now - FORGET_WORKERS))
    return Swept(done, len(silent), stopped)


def _expired(session: Session, now: datetime) -> list[Lease]:
    query = (
        select(Stage, Job)
        .join(Job, Job.id == Stage.job_id)
        .where(Stage.status == StageStatus.RUNNING, Stage.lease_expires_at < now)
    )
    return [lease_of(stage, job) for stage, job in session.execute(query)]


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
            tally.count(session, lease.stage, tally.EXPIRED)
        except LeaseLost:
            return False
        return True


def _silent(session: Session, settings: Settings, now: datetime) -> list[Stage]:
    """Stages that could run, have waited long, and have had no hint lately: the oldest of each kind
    of need, one for each worker, since a worker that wakes takes all it can."""
    before = now - timedelta(seconds=settings.resend_seconds)
    hinted = exists().where(
        Outbox.job_id == Stage.job_id,
        Outbox.kind == OutboxKind.HINT,
        or_(Outbox.sent_at.is_(None), Outbox.sent_at > before),
    )
    waiting = and_(
        Stage.status == StageStatus.QUEUED,
        Job.status.in_(RUNNABLE),
        func.coalesce(Stage.not_before, Stage.queued_at) < before,
        ~hinted,
    )
    needs = select(Stage.needs).join(Job, Job.id == Stage.job_id).where(waiting).distinct()
    workers = max(1, len(alive(session, settings, now)))
    found: list[Stage] = []
    for need in session.scalars(needs).all():
        query = select(Stage).join(Job, Job.id == Stage.job_id).where(waiting, Stage.needs == need)
        found += session.scalars(query.order_by(Stage.job_id).limit(workers))
    return found


def _orphans(session: Session) -> list[str]:
    """Jobs that wait for a worker to stop, while no worker holds a stage of theirs."""
    held = exists().where(Stage.job_id == Job.id, Stage.status == StageStatus.RUNNING)
    asked = Job.status.in_((JobStatus.CANCELLING, JobStatus.PAUSING))
    return list(session.scalars(select(Job.id).where(asked, ~held)))


def _stop(db: Database, job_id: str, now: datetime) -> bool:
    with db.write() as session:
        job = lock_job(session, job_id)
        if job is None or end_pausing(session, job_id, now):
            return job is not None
        if job.status != JobStatus.CANCELLING:
            return False
        end_cancelled(session, job_id, now)
        return True
