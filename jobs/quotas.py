"""How much an owner may take: jobs waiting and running, GPU-hours a day, storage, priority.

The settings hold for everybody; a row in `quotas` changes them for one owner. Jobs in excess of
`max_active`, `storage_gb` and `max_priority` are refused; those in excess of `max_running` and
`gpu_hours_per_day` wait.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.orm import Session

from jobs.errors import InvalidSpec, QuotaExceeded
from jobs.models import Job, Output, Quota
from jobs.settings import Settings
from jobs.states import JobStatus

ACTIVE = tuple(status for status in JobStatus if not status.terminal)
GB = 10**9
NEAR = 100
"""How many jobs below its limit an owner's submissions begin to be counted one after the other."""

_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))")
_COUNT = select(func.count()).where(Job.owner == bindparam("owner"), Job.status.in_(ACTIVE))


@dataclass(frozen=True)
class Limits:
    """What one owner may take; None is no limit."""

    max_active: int
    max_running: int | None
    gpu_hours_per_day: float | None
    storage_gb: float | None
    max_priority: int


def limits_of(session: Session, owners: list[str], settings: Settings) -> dict[str, Limits]:
    """The limits of each owner."""
    common: dict[str, Any] = {
        "max_active": settings.max_active_jobs,
        "max_running": settings.max_running_jobs,
        "gpu_hours_per_day": settings.gpu_hours_per_day,
        "storage_gb": settings.storage_gb,
        "max_priority": settings.max_priority,
    }
    columns = Quota.__table__.columns
    query = select(*columns).where(columns["owner"].in_(owners))
    rows = {row.owner: row._asdict() for row in session.connection().execute(query)}
    return {owner: Limits(**common | _own(rows.get(owner, {}))) for owner in owners}


def set_quota(session: Session, owner: str, **values: float | None) -> Quota:
    """Change some of an owner's limits; None goes back to the settings'."""
    quota = session.get(Quota, owner) or Quota(owner=owner)
    for name, value in values.items():
        if name not in _NAMES:
            raise TypeError(f"{name} is no limit; expected one of {', '.join(_NAMES)}")
        setattr(quota, name, value)
    session.add(quota)
    session.flush()
    return quota


def lock_owner(session: Session, owner: str) -> None:
    """Let nobody else count this owner's jobs until the transaction ends. Comes before the lock of
    a job, never after: one order, no deadlock. SQLite's write transaction is the lock there."""
    if session.get_bind().dialect.name == "postgresql":
        session.connection().execute(_LOCK, {"key": f"owner:{owner}"})


def check_priority(priority: int, limits: Limits) -> None:
    """Raise `InvalidSpec` when an owner of these limits may not ask for a priority."""
    if priority > limits.max_priority:
        most = limits.max_priority
        detail = f"{priority} is more than your highest, {most}; expected at most that"
        raise InvalidSpec([{"pointer": "priority", "detail": detail}])


def check_quota(session: Session, owner: str, limits: Limits, *, more: int = 1) -> None:
    """Raise `QuotaExceeded` when an owner may not have so many jobs more.

    Locks an owner who is `NEAR` the limit. Whoever is not waits for none of their other
    submissions: these could exceed it only if one took longer than so many after it.
    """
    count = _active(session, owner) + more
    if count > limits.max_active - NEAR:
        lock_owner(session, owner)
        count = _active(session, owner) + more
    if count > limits.max_active:
        raise QuotaExceeded(
            f"{count - 1} jobs are queued or running, {limits.max_active} are allowed; "
            "wait for one to end or cancel one"
        )
    if limits.storage_gb is None:
        return
    stored = stored_bytes(session, owner)
    if stored > limits.storage_gb * GB:
        raise QuotaExceeded(
            f"{stored / GB:.1f} GB of stage outputs are stored, {limits.storage_gb:g} GB are "
            "allowed; they go when nobody needs them (`updraft gc`)"
        )


def stored_bytes(session: Session, owner: str) -> int:
    """Bytes of the stage outputs that an owner's jobs were the first to make."""
    total = session.scalar(select(func.sum(Output.bytes)).where(Output.owner == owner))
    return int(total or 0)


_NAMES = [f.name for f in fields(Limits)]


def _active(session: Session, owner: str) -> int:
    count: int = session.connection().execute(_COUNT, {"owner": owner}).scalar_one()
    return count


def _own(quota: dict[str, Any]) -> dict[str, Any]:
    return {name: quota[name] for name in _NAMES if quota.get(name) is not None}
