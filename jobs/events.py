"""Appending to a job's history. Every writer holds the job's row, so that numbers have no gap.

Types: `job.<status>`, `stage.<status>`, `stage.retry`, `log`, `metrics`, `checkpoint`. The last
event of a job is `job.succeeded`, `job.failed` or `job.cancelled`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.logs import redact
from jobs.models import Job, JobEvent
from jobs.states import JobStatus

TERMINAL_EVENTS = frozenset(f"job.{status}" for status in JobStatus if status.terminal)


def lock_job(session: Session, job_id: str) -> Job | None:
    """The job, locked until the transaction ends. First lock of every change to a job: one order,
    no deadlock. SQLite's write transaction is the lock there."""
    statement = select(Job).where(Job.id == job_id).with_for_update(key_share=True)
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


def append_event(
    session: Session,
    job_id: str,
    type: str,
    message: str,
    *,
    now: datetime,
    level: str = "info",
    data: dict[str, Any] | None = None,
) -> int:
    """Add an event, secrets taken out of its message, and raise the job's version. Returns the
    event's number."""
    statement = (
        update(Job)
        .where(Job.id == job_id)
        .values(event_seq=Job.event_seq + 1, version=Job.version + 1)
        .returning(Job.event_seq)
        .execution_options(synchronize_session=False)
    )
    seq = session.execute(statement).scalar_one()
    session.add(
        JobEvent(
            job_id=job_id,
            seq=seq,
            type=type,
            level=level,
            message=redact(message),
            data=data or {},
            created_at=now,
        )
    )
    session.flush()
    return seq
