"""Whose stage is next. Among those that a worker can run: the higher priority; then, on a worker
with GPUs, what needs them; then the owner that has the fewest jobs running, and among these the one
that has taken the least today; then the older job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVarTuple

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from jobs.models import Job, Stage
from jobs.needs import Gpus, serves, taken
from jobs.quotas import Limits, limits_of
from jobs.settings import Settings
from jobs.states import JobStatus, StageStatus
from jobs.usage import Standing, standings

Ts = TypeVarTuple("Ts")

RUNNABLE = (JobStatus.QUEUED, JobStatus.RUNNING)
"""A job whose stage a worker may take."""


@dataclass(frozen=True)
class Turn:
    """Stages of one owner that are alike in all but their age."""

    owner: str
    priority: int
    needs: str
    oldest: str
    limits: Limits


def turns(session: Session, has: Gpus, *, settings: Settings, now: datetime) -> list[Turn]:
    """Whose stages a worker with `has` may take now, in order."""
    query = select(Job.owner, Job.priority, Stage.needs, func.min(Job.id)).select_from(Job)
    query = eligible(query, has, now)
    groups = session.execute(query.group_by(Job.owner, Job.priority, Stage.needs)).all()
    owners = sorted({owner for owner, *_ in groups})
    limits = limits_of(session, owners, settings) if owners else {}
    stand = standings(session, now, owners) if owners else {}
    found = [
        Turn(owner, priority, needs, oldest, limits[owner])
        for owner, priority, needs, oldest in groups
        if not over(limits[owner], stand.get(owner, Standing()), taken(needs, has))
    ]

    def order(turn: Turn) -> tuple[int, bool, int, float, str]:
        stands = stand.get(turn.owner, Standing())
        idle_gpus = bool(has.count) and not taken(turn.needs, has)
        return (-turn.priority, idle_gpus, stands.running, stands.seconds, turn.oldest)

    return sorted(found, key=order)


def eligible(query: Select[*Ts], has: Gpus, now: datetime) -> Select[*Ts]:
    """Limit a query of jobs to stages that wait and that a worker with `has` can run."""
    return query.join(Stage, Job.id == Stage.job_id).where(
        Stage.status == StageStatus.QUEUED,
        or_(Stage.not_before.is_(None), Stage.not_before <= now),
        Job.status.in_(RUNNABLE),
        Stage.needs.in_(serves(has)),
    )


def over(limits: Limits, stands: Standing, gpus: int) -> str | None:
    """Why an owner may not start a stage that takes so many GPUs; None when they may."""
    most, hours = limits.max_running, limits.gpu_hours_per_day
    if most is not None and stands.running >= most:
        return f"{stands.running} jobs of this key run, as many as may at once"
    if gpus and hours is not None and stands.gpu_seconds >= hours * 3600:
        return f"the {hours:g} GPU-hours of this key for today are spent; goes on at 00:00 UTC"
    return None
