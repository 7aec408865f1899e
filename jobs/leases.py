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

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from jobs.errors import LeaseLost
from jobs.events import append_event, lock_job
from jobs.models import Job, Stage
from jobs.needs import Gpus, taken
from jobs.quotas import lock_owner
from jobs.rows import changed
from jobs.settings import Settings
from jobs.shares import Turn, eligible, over, turns
from jobs.spec import JobSpec
from jobs.states import JobStatus, StageStatus, transition
from jobs.usage import Standing, standings
from jobs.waiting import LATER

NOTHING = Gpus()


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
    account: str
    """Owner of the job, who is charged for it."""
    needs: str
    gpus: int
    """How many of the worker's GPUs it may use."""
    since: datetime
    spent: float
    """Seconds that earlier leases of the stage lasted."""


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
    has: Gpus = NOTHING,
) -> Lease | None:
    """Take the best eligible stage (`jobs.shares` says which). None when there is none.

    Args:
        owner: the worker's name.
        has: the worker's GPUs.
    """
    for turn in turns(session, has, settings=settings, now=now):
        if turn.limits.max_running is not None:
            lock_owner(session, turn.owner)
            stands = standings(session, now, [turn.owner]).get(turn.owner, Standing())
            if over(turn.limits, stands, taken(turn.needs, has)):
                continue  # a rival took the last one
        for pass_over in (True, False):
            found = _locked(session, turn, has, now, pass_over=pass_over)
            if found and (lease := _take(session, *found, owner, has, settings, now)):
                return lease
    return None


def heartbeat(session: Session, lease: Lease, *, settings: Settings, now: datetime) -> JobStatus:
    """Renew the lease. Returns the job's status, which says whether it has been asked to stop.

    Raises:
        LeaseLost: another worker owns the stage, or nobody may.
    """
    _guarded(session, lease, lease_expires_at=now + timedelta(seconds=settings.lease_seconds))
    return session.scalars(select(Job.status).where(Job.id == lease.job_id)).one()


def lease_of(stage: Stage, job: Job) -> Lease:
    """The lease that a running stage is held under."""
    assert stage.lease_token is not None  # noqa: S101 - the table's constraint
    assert stage.started_at is not None  # noqa: S101
    return Lease(
        job_id=job.id,
        stage_id=stage.id,
        stage=stage.name,
        token=stage.lease_token,
        owner=stage.lease_owner or "",
        attempt=stage.attempt,
        spec=JobSpec.model_validate(job.spec),
        checkpoint=stage.checkpoint,
        account=job.owner,
        needs=stage.needs,
        gpus=stage.gpus,
        since=stage.started_at,
        spent=stage.leased_seconds,
    )


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


def _locked(
    session: Session, turn: Turn, has: Gpus, now: datetime, *, pass_over: bool
) -> Row[Job, Stage] | None:
    """The oldest stage of a turn, and its job, both locked.

    Args:
        pass_over: leave out what rivals are taking at this moment. Where that leaves nothing, who
            holds it may be no rival (an API that changes its priority), so it is waited for.
    """
    query = eligible(select(Job, Stage).select_from(Job), has, now)
    query = query.where(
        Job.owner == turn.owner, Job.priority == turn.priority, Stage.needs == turn.needs
    )
    query = query.order_by(Stage.job_id).limit(1)
    query = query.with_for_update(of=[Job, Stage], key_share=True, skip_locked=pass_over)
    return session.execute(query.execution_options(populate_existing=True)).first()


def _take(
    session: Session,
    job: Job,
    stage: Stage,
    owner: str,
    has: Gpus,
    settings: Settings,
    now: datetime,
) -> Lease | None:
    won = transition(
        session,
        Stage,
        StageStatus.RUNNING,
        Stage.id == stage.id,
        lease_token=secrets.token_hex(16),
        lease_owner=owner,
        lease_expires_at=now + timedelta(seconds=settings.lease_seconds),
        attempt=Stage.attempt + 1,
        started_at=now,
        gpus=taken(stage.needs, has),
        progress=None,
    )
    if not won:
        return None
    if job.waiting is not None and not job.waiting.endswith(LATER):
        job.waiting = None
    transition(session, Job, JobStatus.RUNNING, Job.id == job.id, started_at=job.started_at or now)
    session.refresh(stage)
    append_event(
        session,
        job.id,
        "stage.running",
        f"{stage.name} started",
        now=now,
        data={"stage": stage.name, "attempt": stage.attempt, "worker": owner},
    )
    return lease_of(stage, job)


def _guarded(session: Session, lease: Lease, **values: Any) -> None:
    """Update columns of the stage, if the lease still holds."""
    held = update(Stage).where(Stage.id == lease.stage_id, Stage.lease_token == lease.token)
    if not changed(session, held.values(**(values or {"lease_owner": lease.owner}))):
        raise lost(lease)


def lost(lease: Lease) -> LeaseLost:
    """The error of a worker that writes without owning the stage."""
    return LeaseLost(
        f"{lease.stage} of {lease.job_id} is no longer leased to {lease.owner}; its work is dropped"
    )
