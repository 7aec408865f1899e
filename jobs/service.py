"""What the API does with jobs and drafts. No function here commits: the caller's session does."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, selectinload

from eagle3.config import STAGES
from jobs.endings import end_cancelled
from jobs.errors import IdempotencyMismatch, IllegalTransition, NotFound, QuotaExceeded
from jobs.events import append_event, lock_job
from jobs.ids import new_id
from jobs.lineage import find_parent, parent_of, with_parent
from jobs.models import Alias, Draft, IdempotencyRecord, Job, JobEvent, Stage
from jobs.outbox import enqueue_hint
from jobs.settings import Settings
from jobs.spec import JobSpec, check_allowed
from jobs.states import JobStatus, StageStatus, transition

ALL_STAGES = (*STAGES, "register")
LOCAL_OWNER = "local"
"""Owner of every job in embedded mode, which has no API keys."""

T = TypeVar("T")


@dataclass(frozen=True)
class Submission:
    """A job, and whether it is the answer to an earlier submission under the same key."""

    job: Job
    replayed: bool


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows, newest first, and the `after` of the next page (None on the last)."""

    items: list[T]
    next_after: str | None


def submit(
    session: Session,
    spec: JobSpec,
    *,
    settings: Settings,
    now: datetime,
    owner: str = LOCAL_OWNER,
    sees: str | None = None,
    idempotency_key: str | None = None,
) -> Submission:
    """Write a job, its stages, its first event, its hint and its idempotency record, or none.

    Args:
        sees: the owner whose drafts the job may go on from; everybody's when None.

    Raises:
        InvalidSpec: it reads from a place that is not allowed, or goes on from no draft there is.
        IdempotencyMismatch: the key was used with another spec.
        QuotaExceeded: the owner has too many jobs queued or running.
    """
    check_allowed(spec, settings)
    if idempotency_key is not None:
        body = spec.model_dump(mode="json")  # as sent: by now a name may mean another draft
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        if earlier := _replay(session, owner, idempotency_key, digest, settings, now):
            return Submission(earlier, replayed=True)
    _check_quota(session, owner, settings)
    if parent_of(spec) is not None:
        spec = with_parent(spec, find_parent(session, spec, sees))
    job = _new_job(spec, owner, now)
    try:
        with session.begin_nested():
            session.add(job)
            session.flush()
            if idempotency_key is not None:
                session.add(
                    IdempotencyRecord(
                        owner=owner,
                        key=idempotency_key,
                        body_sha256=digest,
                        job_id=job.id,
                        created_at=now,
                    )
                )
    except IntegrityError:  # a rival used the key first; its record is visible by now
        if idempotency_key is None:
            raise
        rival = _replay(session, owner, idempotency_key, digest, settings, now)
        if rival is None:
            raise
        return Submission(rival, replayed=True)
    append_event(session, job.id, "job.queued", f"{spec.target} with {spec.recipe}", now=now)
    enqueue_hint(session, job.id, ALL_STAGES[0], now)
    session.refresh(job, ["version", "event_seq"])
    return Submission(job, replayed=False)


def get_job(session: Session, job_id: str, *, owner: str | None = None) -> Job:
    """A job with its stages. `owner` limits the search to that owner's jobs.

    Raises:
        NotFound: no such job, or another owner's.
    """
    job = session.scalars(
        select(Job).where(Job.id == job_id).options(selectinload(Job.stages))
    ).one_or_none()
    if job is None or (owner is not None and job.owner != owner):
        raise NotFound(f"no job {job_id!r}; list them with GET /v1/jobs or `updraft jobs`")
    return job


def list_jobs(
    session: Session,
    *,
    owner: str | None = None,
    status: JobStatus | None = None,
    target: str | None = None,
    labels: dict[str, str] | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[Job]:
    """Jobs with their stages, newest first; `after` is the last id of the page before."""
    query = select(Job).options(selectinload(Job.stages)).order_by(Job.id.desc())
    if owner is not None:
        query = query.where(Job.owner == owner)
    if status is not None:
        query = query.where(Job.status == status)
    if target is not None:
        query = query.where(Job.target == target)
    for name, value in (labels or {}).items():
        query = query.where(Job.labels[name].as_string() == value)
    if after is not None:
        query = query.where(Job.id < after)
    return _page(session, query, limit)


def request_cancel(
    session: Session, job_id: str, *, now: datetime, owner: str | None = None
) -> Job:
    """Cancel at once when no stage runs; otherwise ask the worker, which stops within a heartbeat.

    Asking again changes nothing.

    Raises:
        NotFound: no such job.
        IllegalTransition: it has already succeeded or failed.
    """
    job = get_job(session, job_id, owner=owner)
    locked = lock_job(session, job_id)
    assert locked is not None  # noqa: S101 - just read, and jobs are never deleted here
    if job.status in (JobStatus.CANCELLED, JobStatus.CANCELLING):
        return job
    if job.status.terminal:
        raise IllegalTransition(f"job {job_id} has already {job.status}; nothing to cancel")
    running = session.scalar(
        select(Stage.id).where(Stage.job_id == job_id, Stage.status == StageStatus.RUNNING)
    )
    if running is None:
        job.cancel_requested_at = now
        end_cancelled(session, job_id, now)
    else:
        transition(session, Job, JobStatus.CANCELLING, Job.id == job_id, cancel_requested_at=now)
        append_event(session, job_id, "job.cancelling", "cancel requested", now=now)
    session.expire_all()
    return get_job(session, job_id)


def list_events(
    session: Session, job_id: str, *, after: int = 0, limit: int = 100
) -> list[JobEvent]:
    """Events with a number above `after`, oldest first."""
    return list(
        session.scalars(
            select(JobEvent)
            .where(JobEvent.job_id == job_id, JobEvent.seq > after)
            .order_by(JobEvent.seq)
            .limit(limit)
        )
    )


def list_drafts(
    session: Session,
    *,
    owner: str | None = None,
    base_model: str | None = None,
    revision: str | None = None,
    alias: Alias | None = None,
    name: str | None = None,
    job_id: str | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[Draft]:
    """Drafts, newest first. `base_model` is a target as submitted, or as resolved without its
    revision; `revision` what follows the `@` of the resolved target."""
    query = select(Draft).order_by(Draft.id.desc())
    if owner is not None:
        query = query.where(Draft.owner == owner)
    if base_model is not None:
        resolved = Draft.target_resolved.startswith(f"{base_model}@", autoescape=True)
        query = query.where((Draft.target == base_model) | resolved)
    if revision is not None:
        query = query.where(Draft.target_resolved.endswith(f"@{revision}", autoescape=True))
    if alias is not None:
        query = query.where(Draft.alias == alias)
    if name is not None:
        query = query.where(Draft.name == name)
    if job_id is not None:
        query = query.where(Draft.job_id == job_id)
    if after is not None:
        query = query.where(Draft.id < after)
    return _page(session, query, limit)


def _new_job(spec: JobSpec, owner: str, now: datetime) -> Job:
    job = Job(
        id=new_id("job_", now),
        status=JobStatus.QUEUED,
        version=1,
        owner=owner,
        target=spec.target,
        recipe=spec.recipe,
        spec=spec.model_dump(mode="json"),
        labels=dict(spec.labels),
        created_at=now,
        event_seq=0,
        mirrored_seq=0,
    )
    job.stages = [
        Stage(
            name=name,
            position=i,
            status=StageStatus.QUEUED if i == 0 else StageStatus.PENDING,
            queued_at=now if i == 0 else None,
            attempt=0,
        )
        for i, name in enumerate(ALL_STAGES)
    ]
    return job


def _replay(
    session: Session, owner: str, key: str, digest: str, settings: Settings, now: datetime
) -> Job | None:
    record = session.get(IdempotencyRecord, (owner, key), populate_existing=True)
    if record is None:
        return None
    if record.created_at < now - timedelta(days=settings.idempotency_days):
        session.delete(record)
        session.flush()
        return None
    if record.body_sha256 != digest:
        raise IdempotencyMismatch(
            f"Idempotency-Key {key!r} was used with another job ({record.job_id}); "
            "send the same body, or a new key"
        )
    return get_job(session, record.job_id)


def _check_quota(session: Session, owner: str, settings: Settings) -> None:
    active = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELLING)
    count = session.scalar(
        select(func.count()).select_from(Job).where(Job.owner == owner, Job.status.in_(active))
    )
    if (count or 0) >= settings.max_active_jobs:
        raise QuotaExceeded(
            f"{count} jobs are queued or running, {settings.max_active_jobs} are allowed; "
            "wait for one to end or cancel one"
        )


def _page(session: Session, query: Any, limit: int) -> Page[Any]:
    rows = list(session.scalars(query.limit(limit + 1)))
    return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)
