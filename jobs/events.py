"""Appending to a job's history. Every writer holds the job's row, so that numbers have no gap.

Types: `job.<status>`, `job.priority`, `job.waiting`, `stage.<status>`, `stage.retry`, `log`,
`metrics`, `checkpoint`, `attach.decided`. A job that has ended, ended with `job.succeeded`,
`job.failed` or `job.cancelled`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.logs import redact
from jobs.models import Job, JobEvent
from jobs.rows import add_rows
from jobs.states import JobStatus
from jobs.webhook_events import JOB_EVENTS
from jobs.webhooks import announce_job

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
    seq: int = session.execute(statement).scalar_one()
    message = _write(session, job_id, seq, type, message, now, level, data or {})
    if type in JOB_EVENTS:
        job = session.get_one(Job, job_id)  # mostly loaded already; what is told never changes
        facts = {"seq": seq, "message": message, **_told(data or {}, level)}
        announce_job(session, job, type, facts, now=now)
    return seq


def first_event(
    session: Session, job: Job, type: str, message: str, *, now: datetime, data: dict[str, Any]
) -> None:
    """The event of a job that was just made, which counts it already and nobody else can see."""
    message = _write(session, job.id, job.event_seq, type, message, now, "info", data)
    announce_job(session, job, type, {"seq": job.event_seq, "message": message}, now=now)


def _write(
    session: Session,
    job_id: str,
    seq: int,
    type: str,
    message: str,
    now: datetime,
    level: str,
    data: dict[str, Any],
) -> str:
    """Returns the message as it is kept."""
    message = redact(message)
    event = JobEvent(job_id=job_id, seq=seq, type=type, level=level, message=message, data=data)
    event.created_at = now
    add_rows(session, event)
    return message


def _told(data: dict[str, Any], level: str) -> dict[str, Any]:
    """What of an event's data a webhook has room for: the draft, or the error."""
    if level == "error":
        return {"error": data}
    return {"draft_id": data["draft_id"]} if "draft_id" in data else {}
