"""What owners take of the workers: charged when a lease ends, and counted while it lasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.models import Job, Stage, Usage
from jobs.rows import change_or_add
from jobs.states import StageStatus


@dataclass
class Standing:
    """What one owner has now, and has taken on this UTC day."""

    running: int = 0
    seconds: float = 0.0
    gpu_seconds: float = 0.0


def charge(session: Session, owner: str, *, now: datetime, seconds: float, gpus: int) -> None:
    """Add time on a worker to an owner's day."""
    day = now.astimezone(UTC).date()
    first = {"seconds": seconds, "gpu_seconds": seconds * gpus}
    add = {name: getattr(Usage, name) + value for name, value in first.items()}
    change_or_add(session, Usage, {"owner": owner, "day": day}, add, first)


def standings(
    session: Session, now: datetime, owners: Iterable[str] | None = None
) -> dict[str, Standing]:
    """How owners stand; one that is not in it has taken nothing."""
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    charged = select(Usage).where(Usage.day == midnight.date())
    running = (
        select(Job.owner, Stage.started_at, Stage.gpus)
        .join(Job, Job.id == Stage.job_id)
        .where(Stage.status == StageStatus.RUNNING)
    )
    if owners is not None:
        charged = charged.where(Usage.owner.in_(list(owners)))
        running = running.where(Job.owner.in_(list(owners)))
    found: dict[str, Standing] = defaultdict(Standing)
    for usage in session.scalars(charged):
        found[usage.owner] = Standing(0, usage.seconds, usage.gpu_seconds)
    for owner, started, gpus in session.execute(running):
        seconds = max(0.0, (now - max(started or now, midnight)).total_seconds())
        found[owner].running += 1
        found[owner].seconds += seconds
        found[owner].gpu_seconds += seconds * gpus
    return dict(found)


def list_usage(
    session: Session, *, owner: str | None = None, since: date | None = None
) -> list[Usage]:
    """Charged days, newest first."""
    query = select(Usage).order_by(Usage.day.desc(), Usage.owner)
    if owner is not None:
        query = query.where(Usage.owner == owner)
    if since is not None:
        query = query.where(Usage.day >= since)
    return list(session.scalars(query))
