"""Why a job waits, where it is not simply the turn of others: nobody can run it, its owner has
taken their share, or it is not yet time. The sweeper writes it to the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.events import append_event, lock_job
from jobs.models import Job, Stage, Worker
from jobs.needs import ANY, CPU, Gpus, parse_gpus, serves, taken
from jobs.quotas import Limits, limits_of
from jobs.settings import Settings
from jobs.shares import RUNNABLE, over
from jobs.states import StageStatus
from jobs.usage import Standing, standings

BATCH = 500
UNRUNNABLE = "no worker "
"""How the reason begins that is an event, too: somebody has to do something."""
LATER = " will need it"
"""How a reason ends that holds while an earlier stage runs."""


@dataclass(frozen=True)
class Scene:
    """What the reasons follow from."""

    has: list[str]
    """What the workers that are alive have."""
    limits: dict[str, Limits]
    stand: dict[str, Standing]
    now: datetime
    patience: timedelta
    """How long a stage may wait before the lack of workers is worth a word."""


def alive(session: Session, settings: Settings, now: datetime) -> Sequence[Worker]:
    """Workers that have given a sign of life within a lease."""
    since = now - timedelta(seconds=settings.lease_seconds)
    return session.scalars(select(Worker).where(Worker.seen_at >= since)).all()


def unserved(needs: str, has: Sequence[str]) -> str | None:
    """Why no worker can run a stage with these needs; None when one can."""
    if any(needs in serves(parse_gpus(one)) for one in has):
        return None
    if not has:
        return f"{UNRUNNABLE}is running; start one"
    there = ", ".join(sorted(set(has)))
    return f"{UNRUNNABLE}has {needs}; the workers that run have {there}"


def note_waiting(db: Database, settings: Settings, now: datetime) -> int:
    """Write to each job that goes on why it waits. Returns how many changed."""
    with db.read() as session:
        changes = list(_changes(session, settings, now))
    for start in range(0, len(changes), BATCH):
        with db.write() as session:
            for job_id, reason in changes[start : start + BATCH]:
                _note(session, job_id, reason, now)
    return len(changes)


def _changes(
    session: Session, settings: Settings, now: datetime
) -> Iterator[tuple[str, str | None]]:
    has = [worker.has for worker in alive(session, settings, now)]
    rows = session.execute(_stages(has)).all()
    owners = sorted({row.owner for row in rows})
    scene = Scene(
        has=has,
        limits=limits_of(session, owners, settings) if owners else {},
        stand=standings(session, now, owners) if owners else {},
        now=now,
        patience=timedelta(seconds=settings.resend_seconds),
    )
    told: dict[str, str | None] = {}
    found: dict[str, str | None] = {}
    for row in rows:
        told[row.id] = row.waiting
        found[row.id] = found.get(row.id) or _reason(scene, row)
    for job_id, before in told.items():
        if found[job_id] != before:
            yield job_id, found[job_id]


def _stages(has: list[str]) -> Any:
    """Stages that a job may be waiting at or for, those of a job together and in order."""
    served = {needs for one in has for needs in serves(parse_gpus(one))} or {ANY, CPU}
    return (
        select(Job.id, Job.owner, Job.waiting, Stage.name, Stage.status, Stage.needs)
        .add_columns(Stage.not_before, Stage.queued_at)
        .join(Stage, Stage.job_id == Job.id)
        .where(
            Job.status.in_(RUNNABLE),
            or_(
                Stage.status == StageStatus.QUEUED,
                and_(Stage.status == StageStatus.RUNNING, Job.waiting.is_not(None)),
                and_(Stage.status == StageStatus.PENDING, Stage.needs.not_in(served)),
            ),
        )
        .order_by(Job.id, Stage.position)
    )


def _reason(scene: Scene, row: Any) -> str | None:
    """Why a job waits, for one of its stages."""
    if row.status == StageStatus.RUNNING:
        return None
    if row.status == StageStatus.PENDING:  # the stages before it may run
        lack = unserved(row.needs, scene.has) if scene.has else None
        return f"{lack}; {row.name}{LATER}" if lack else None
    if row.not_before is not None and row.not_before > scene.now:
        return f"{row.name} is tried again at {row.not_before:%Y-%m-%d %H:%M:%S} UTC"
    waited = scene.now - (row.queued_at or scene.now)
    lack = unserved(row.needs, scene.has) if waited > scene.patience else None
    stands = scene.stand.get(row.owner, Standing())
    return lack or over(scene.limits[row.owner], stands, taken(row.needs, Gpus()))


def _note(session: Session, job_id: str, reason: str | None, now: datetime) -> None:
    job = lock_job(session, job_id)
    if job is None or job.status not in RUNNABLE:
        return
    job.waiting = reason
    if reason is not None and reason.startswith(UNRUNNABLE):
        append_event(session, job_id, "job.waiting", reason, now=now, level="warning")
    else:
        session.execute(
            update(Job)
            .where(Job.id == job_id)
            .values(version=Job.version + 1)
            .execution_options(synchronize_session=False)
        )
