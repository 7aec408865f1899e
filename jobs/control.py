"""What a person does to a job that was submitted: pause, resume, try again, put first."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.errors import IllegalTransition
from jobs.events import append_event, lock_job
from jobs.models import Job, Stage
from jobs.outbox import enqueue_hint
from jobs.outputs import touch
from jobs.quotas import check_priority, check_quota, limits_of
from jobs.service import get_job
from jobs.settings import Settings
from jobs.states import JobStatus, StageStatus, transition

FRESH = {
    "attempt": 0, "not_before": None, "queued_at": None, "error": None, "finished_at": None,
    "summary": None, "digest": None, "uri": None, "seconds": None, "leased_seconds": 0.0,
}  # fmt: skip
"""A stage that has not been tried; its checkpoint stays, to go on from."""


def pause(session: Session, job_id: str, *, now: datetime, owner: str | None = None) -> Job:
    """Keep a job from going on: at once when no stage runs; otherwise its worker is asked, saves
    its work and gives the stage back, the attempt not counted. Asking again changes nothing.

    Raises:
        NotFound: no such job.
        IllegalTransition: it has ended, or is being cancelled.
    """
    job = _locked(session, job_id, owner)
    if job.status in (JobStatus.PAUSING, JobStatus.PAUSED):
        return get_job(session, job_id)
    running = select(Stage.id).where(Stage.job_id == job_id, Stage.status == StageStatus.RUNNING)
    to = JobStatus.PAUSED if session.scalar(running) is None else JobStatus.PAUSING
    if not transition(session, Job, to, Job.id == job_id):
        raise IllegalTransition(f"job {job_id} is {job.status}; only one that goes on can pause")
    append_event(session, job_id, f"job.{to}", "pause requested", now=now)
    return _fresh(session, job_id)


def resume(session: Session, job_id: str, *, now: datetime, owner: str | None = None) -> Job:
    """Let a paused job go on from where it was. One that was not paused is left as it is.

    Raises:
        NotFound: no such job.
        IllegalTransition: it has ended, or is being cancelled.
    """
    job = _locked(session, job_id, owner)
    if job.status in (JobStatus.QUEUED, JobStatus.RUNNING):
        return get_job(session, job_id)
    if job.status == JobStatus.PAUSING:  # its worker may have stopped already, and gives it back
        transition(session, Job, JobStatus.RUNNING, Job.id == job_id)
        append_event(session, job_id, "job.running", "resumed", now=now)
        return _fresh(session, job_id)
    if job.status != JobStatus.PAUSED:
        raise IllegalTransition(f"job {job_id} is {job.status}; only a paused one can be resumed")
    transition(session, Job, JobStatus.QUEUED, Job.id == job_id)
    append_event(session, job_id, "job.queued", "resumed", now=now)
    _announce(session, job_id, now)
    return _fresh(session, job_id)


def retry(
    session: Session, job_id: str, *, settings: Settings, now: datetime, owner: str | None = None
) -> Job:
    """Run a failed or cancelled job again from its last good stage: the first one that did not
    succeed, or whose inputs are no longer stored. Attempts are counted anew.

    Raises:
        NotFound: no such job.
        IllegalTransition: it has not failed and was not cancelled.
        QuotaExceeded: its owner has too many jobs.
    """
    whose = get_job(session, job_id, owner=owner).owner
    check_quota(session, whose, limits_of(session, [whose], settings)[whose])
    job = _locked(session, job_id, owner)
    if job.status not in (JobStatus.FAILED, JobStatus.CANCELLED):
        text = f"job {job_id} is {job.status}; only a failed or cancelled one can be tried again"
        raise IllegalTransition(text)
    stages = session.scalars(
        select(Stage).where(Stage.job_id == job_id).order_by(Stage.position)
    ).all()
    first = _first_to_do(session, list(stages), now)
    this, later = Stage.id == first.id, Stage.position > first.position
    of_job = Stage.job_id == job_id
    transition(session, Stage, StageStatus.PENDING, of_job, later, **FRESH)
    transition(session, Stage, StageStatus.QUEUED, this, **{**FRESH, "queued_at": now})
    transition(
        session,
        Job,
        JobStatus.QUEUED,
        Job.id == job_id,
        error=None,
        result=None,
        finished_at=None,
        cancel_requested_at=None,
    )
    text = f"tried again from {first.name}"
    append_event(session, job_id, "job.queued", text, now=now, data={"stage": first.name})
    _announce(session, job_id, now)
    return _fresh(session, job_id)


def prioritise(
    session: Session,
    job_id: str,
    priority: int,
    *,
    settings: Settings,
    now: datetime,
    owner: str | None = None,
) -> Job:
    """Change a job's priority; it counts when a worker next looks for work.

    Raises:
        NotFound: no such job.
        InvalidSpec: a higher priority than the job's owner may ask for.
        IllegalTransition: the job has ended.
    """
    job = _locked(session, job_id, owner)
    check_priority(priority, limits_of(session, [job.owner], settings)[job.owner])
    if job.status.terminal:
        raise IllegalTransition(f"job {job_id} has already {job.status}; it waits for nothing")
    if job.priority != priority:
        text = f"priority {job.priority} to {priority}"
        job.priority = priority
        append_event(session, job_id, "job.priority", text, now=now, data={"priority": priority})
    return _fresh(session, job_id)


def _first_to_do(session: Session, stages: list[Stage], now: datetime) -> Stage:
    """The first stage that has not succeeded, or whose outputs are no longer there to be used."""
    for stage in stages:
        kept = stage.uri is not None and touch(session, stage.uri, now)
        if stage.status != StageStatus.SUCCEEDED or not kept:
            return stage
    return stages[-1]


def _announce(session: Session, job_id: str, now: datetime) -> None:
    waiting = select(Stage).where(Stage.job_id == job_id, Stage.status == StageStatus.QUEUED)
    for stage in session.scalars(waiting.execution_options(populate_existing=True)):
        enqueue_hint(session, job_id, stage.name, stage.needs, now, due=stage.not_before)


def _locked(session: Session, job_id: str, owner: str | None) -> Job:
    get_job(session, job_id, owner=owner)
    job = lock_job(session, job_id)
    assert job is not None  # noqa: S101 - just read, and jobs are never deleted here
    return job


def _fresh(session: Session, job_id: str) -> Job:
    session.expire_all()
    return get_job(session, job_id)
