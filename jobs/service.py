"""What the API does with jobs and drafts. No function here commits: the caller's session does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, delete, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, selectinload

from eagle3.config import STAGES
from jobs import tracing
from jobs.attachments import add_attachment
from jobs.endings import end_cancelled
from jobs.errors import IdempotencyMismatch, IllegalTransition, NotFound
from jobs.evaluations import add_evaluation, with_drafts
from jobs.events import append_event, first_event, lock_job
from jobs.ids import new_id
from jobs.lineage import find_parent, parent_of, with_parent
from jobs.models import Alias, Draft, IdempotencyRecord, Job, JobEvent, Stage
from jobs.needs import stage_needs
from jobs.outbox import enqueue_hint
from jobs.pages import Page, page_of
from jobs.quotas import check_priority, check_quota, limits_of
from jobs.rows import add_rows
from jobs.settings import Settings
from jobs.spec import JobSpec, check_allowed
from jobs.states import JobStatus, StageStatus, transition

ALL_STAGES = (*STAGES, "register")
PROBED_AFTER = ALL_STAGES.index("prepare") + 1
ATTACH_STAGES = (*ALL_STAGES[:PROBED_AFTER], "probe", *ALL_STAGES[PROBED_AFTER:])
EVALUATE_STAGES = (*ALL_STAGES[:PROBED_AFTER], "probe")
LOCAL_OWNER = "local"
"""Owner of every job in embedded mode, which has no API keys."""

_RECORD = select(*IdempotencyRecord.__table__.columns).filter_by(
    owner=bindparam("owner"), key=bindparam("key")
)


@dataclass(frozen=True)
class Submission:
    """A job, and whether it is the answer to an earlier submission under the same key."""

    job: Job
    replayed: bool


def submit(
    session: Session,
    spec: JobSpec,
    *,
    settings: Settings,
    now: datetime,
    owner: str = LOCAL_OWNER,
    sees: str | None = None,
    idempotency_key: str | None = None,
    asked: dict[str, Any] | None = None,
) -> Submission:
    """Write a job, its stages, its first event, its hint and its idempotency record, or none.

    Args:
        sees: the owner whose drafts the job may go on from; everybody's when None.
        asked: what a repeat under the key must ask for, as `repeated` is told; the spec when None.

    Raises:
        InvalidSpec: it reads from a place that is not allowed, goes on from no draft there is, or
            asks for a higher priority than the owner may.
        IdempotencyMismatch: the key was used with another spec.
        QuotaExceeded: the owner has too many jobs queued or running, or stores too much.
    """
    check_allowed(spec, settings)
    if idempotency_key is not None:
        digest = _digest(asked or spec.model_dump(mode="json"))  # names: they may mean others now
        if earlier := _replay(session, owner, idempotency_key, digest, settings, now):
            return Submission(earlier, replayed=True)
    limits = limits_of(session, [owner], settings)[owner]
    check_priority(spec.priority, limits)
    if parent_of(spec) is not None:
        spec = with_parent(spec, find_parent(session, spec, sees))
    if spec.evaluate is not None:
        spec = with_drafts(session, spec, sees)
    job = _new_job(spec, spec.needs or settings.default_needs, owner, now)
    try:
        with session.begin_nested():
            add_rows(session, job, *job.stages)
            if spec.attach is not None:
                add_attachment(session, job)
            if spec.evaluate is not None:
                add_evaluation(session, job, spec.evaluate)
            if idempotency_key is not None:
                record = IdempotencyRecord(
                    owner=owner,
                    key=idempotency_key,
                    body_sha256=digest,
                    job_id=job.id,
                    created_at=now,
                )
                add_rows(session, record)
            text = f"{spec.target} with {spec.recipe}"
            first_event(session, job, "job.queued", text, now=now, data=dict(tracing.here()))
            enqueue_hint(session, job.id, ALL_STAGES[0], job.stages[0].needs, now)
            check_quota(session, owner, limits, more=0)  # last: others of this owner may wait
    except IntegrityError:  # a rival used the key first; its record is visible by now
        if idempotency_key is None:
            raise
        rival = _replay(session, owner, idempotency_key, digest, settings, now)
        if rival is None:
            raise
        return Submission(rival, replayed=True)
    return Submission(job, replayed=False)


def repeated(
    session: Session,
    asked: dict[str, Any],
    idempotency_key: str | None,
    *,
    settings: Settings,
    now: datetime,
    owner: str,
) -> Submission | None:
    """What was made under the key for the same request, if it was. To be asked before a spec is
    made of what the request names, which may be gone by now.

    Raises:
        IdempotencyMismatch: the key was used with another request.
    """
    if idempotency_key is None:
        return None
    earlier = _replay(session, owner, idempotency_key, _digest(asked), settings, now)
    return None if earlier is None else Submission(earlier, replayed=True)


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
    """Jobs without their stages, newest first; `after` is the last id of the page before."""
    query = select(Job).order_by(Job.id.desc())
    if owner is not None:
        query = query.where(Job.owner == owner)
    if status is not None:
        query = query.where(Job.status == status)
    if target is not None:
        query = query.where(Job.target == target)
    for name, value in (labels or {}).items():
        query = query.where(_labelled(session, name, value))
    if after is not None:
        query = query.where(Job.id < after)
    return _page(session, query, limit)


def stage_rows(session: Session, jobs: Sequence[Job], *names: str) -> dict[str, list[Row[Any]]]:
    """These columns of the jobs' stages, in order, by job. A page has ten times as many stages as
    jobs: as objects of the session they would take as long again as all else."""
    columns = Stage.__table__.columns
    query = select(columns["job_id"], *(columns[name] for name in names))
    query = query.where(columns["job_id"].in_([job.id for job in jobs]))
    found: dict[str, list[Row[Any]]] = {job.id: [] for job in jobs}
    for row in session.connection().execute(query.order_by(columns["position"])):
        found[row.job_id].append(row)
    return found


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
    deprecated: bool | None = None,
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
    if deprecated is not None:
        query = query.where(Draft.deprecated_at.is_not(None) == deprecated)
    if after is not None:
        query = query.where(Draft.id < after)
    return _page(session, query, limit)


def stages_of(spec: JobSpec) -> tuple[str, ...]:
    """What a job does, in order."""
    if spec.evaluate is not None:
        return EVALUATE_STAGES
    return ATTACH_STAGES if spec.attach is not None else ALL_STAGES


def _labelled(session: Session, name: str, value: str) -> ColumnElement[bool]:
    """Jobs with a label; on PostgreSQL, in the words that its index understands."""
    has: ColumnElement[bool] = Job.labels[name].as_string() == value
    if session.get_bind().dialect.name == "postgresql":
        has = type_coerce(Job.labels, JSONB).contains({name: value})
    return has


def _new_job(spec: JobSpec, needs: str, owner: str, now: datetime) -> Job:
    job = Job(
        id=new_id("job_", now),
        status=JobStatus.QUEUED,
        version=1,
        owner=owner,
        priority=spec.priority,
        target=spec.target,
        recipe=spec.recipe,
        spec=spec.model_dump(mode="json"),
        labels=dict(spec.labels),
        created_at=now,
        event_seq=1,
        mirrored_seq=0,
    )
    job.stages = [
        Stage(
            job_id=job.id,
            name=name,
            position=i,
            status=StageStatus.QUEUED if i == 0 else StageStatus.PENDING,
            queued_at=now if i == 0 else None,
            needs=stage_needs(name, needs),
            attempt=0,
        )
        for i, name in enumerate(stages_of(spec))
    ]
    return job


def _digest(asked: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _replay(
    session: Session, owner: str, key: str, digest: str, settings: Settings, now: datetime
) -> Job | None:
    named = {"owner": owner, "key": key}
    record = session.connection().execute(_RECORD, named).one_or_none()
    if record is None:
        return None
    if record.created_at < now - timedelta(days=settings.idempotency_days):
        session.execute(delete(IdempotencyRecord).filter_by(**named))
        return None
    if record.body_sha256 != digest:
        raise IdempotencyMismatch(
            f"Idempotency-Key {key!r} was used with another job ({record.job_id}); "
            "send the same body, or a new key"
        )
    return get_job(session, record.job_id)


def _page(session: Session, query: Any, limit: int) -> Page[Any]:
    rows = list(session.scalars(query.limit(limit + 1)))
    return page_of(rows, limit, lambda row: str(row.id))
