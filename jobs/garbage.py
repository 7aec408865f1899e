"""Removes from the object store what nobody needs any more.

    stages/<stage>/<digest>/<outputs>/   needed by jobs that have not ended; after that kept for
                                         other jobs and for a retry, `keep_outputs_days` from its
                                         last use, or less when the store holds too much
    jobs/<job>/checkpoints/              needed by jobs that have not ended; kept as long for a
                                         retry, unless the job has succeeded
    jobs/<job>/logs/, drafts/            kept for good

Outputs are marked in the database before they are removed, the manifest goes first, and the row
goes last: a collection that is interrupted is taken up by the next one, and whoever wants to use or
write the same outputs meanwhile sees the mark (`jobs.outputs`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.models import Job, Output, Stage
from jobs.quotas import GB
from jobs.settings import Settings
from jobs.states import JobStatus
from jobs.store import ObjectStore

MANIFEST = "manifest.json"
GRACE = timedelta(days=1)
"""What was touched within this time is in use by somebody who has not said so yet."""

ENDED = tuple(status for status in JobStatus if status.terminal)


@dataclass(frozen=True)
class Waste:
    """Something that is not needed: a prefix, how much lies under it, and why it may go."""

    prefix: str
    bytes: int
    why: str


def collect(
    db: Database, store: ObjectStore, settings: Settings, now: datetime, *, dry_run: bool = False
) -> list[Waste]:
    """Remove what is not needed, or only say what that is. Returns it.

    Raises:
        Unavailable: the store does not answer; what is marked goes next time.
    """
    with db.read() as session:
        outputs = list(_outputs(session, settings, now))
        ended = _ended_jobs(session, settings, now)
        known = set(session.scalars(select(Output.prefix)))
    found = [
        *outputs,
        *_strays(store, known, now),
        *_checkpoints(store, ended),
    ]
    if dry_run:
        return found
    return [waste for waste in found if _remove(db, store, waste, now)]


def _outputs(session: Session, settings: Settings, now: datetime) -> Iterator[Waste]:
    """Stored outputs that may go: those too old, then the least recently used of too many."""
    cutoff = now - max(timedelta(days=settings.keep_outputs_days), GRACE)
    for row in session.scalars(_unneeded(or_(Output.used_at < cutoff, Output.deleting))):
        why = "its removal was interrupted" if row.deleting else f"last used {row.used_at:%Y-%m-%d}"
        yield Waste(row.prefix, row.bytes, why)
    if settings.store_gb is None:
        return
    kept = select(func.sum(Output.bytes)).where(Output.used_at >= cutoff, ~Output.deleting)
    excess = int(session.scalar(kept) or 0) - settings.store_gb * GB
    recent = and_(Output.used_at >= cutoff, Output.used_at < now - GRACE, ~Output.deleting)
    for row in session.scalars(_unneeded(recent)):
        if excess <= 0:
            return
        excess -= row.bytes
        why = f"more than {settings.store_gb:g} GB are stored; last used {row.used_at:%Y-%m-%d}"
        yield Waste(row.prefix, row.bytes, why)


def _unneeded(which: ColumnElement[bool]) -> Select[Output]:
    return select(Output).where(which, ~_needed()).order_by(Output.used_at, Output.prefix)


def _needed() -> ColumnElement[bool]:
    """Whether a job that has not ended goes on from an output."""
    going_on = select(Stage.id).join(Job, Job.id == Stage.job_id)
    return exists(going_on.where(Stage.uri == Output.prefix, Job.status.not_in(ENDED)))


def _ended_jobs(session: Session, settings: Settings, now: datetime) -> dict[str, str]:
    """Jobs whose checkpoints may go, each with the reason."""
    cutoff = now - timedelta(days=settings.keep_outputs_days)
    old = or_(Job.status == JobStatus.SUCCEEDED, Job.finished_at < cutoff)
    query = select(Job.id, Job.status).where(Job.status.in_(ENDED), old)
    return {job_id: f"job {status}" for job_id, status in session.execute(query)}


def _strays(store: ObjectStore, known: set[str], now: datetime) -> Iterator[Waste]:
    """Outputs that the database does not know: of a database that was lost or restored."""
    sizes, newest = _by_prefix(store, "stages/", 4)
    for prefix, size in sorted(sizes.items()):
        if prefix not in known and newest[prefix] < now - GRACE:
            yield Waste(prefix, size, "not in the database")


def _checkpoints(store: ObjectStore, ended: dict[str, str]) -> Iterator[Waste]:
    sizes, _ = _by_prefix(store, "jobs/", 3)
    for prefix, size in sorted(sizes.items()):
        _, job_id, kind = prefix.split("/")
        if kind == "checkpoints" and job_id in ended:
            yield Waste(prefix, size, ended[job_id])


def _by_prefix(
    store: ObjectStore, under: str, depth: int
) -> tuple[dict[str, int], dict[str, datetime]]:
    """Bytes, and time of the last write, under each prefix of so many parts."""
    sizes: dict[str, int] = defaultdict(int)
    newest: dict[str, datetime] = {}
    for entry in store.entries(under):
        prefix = "/".join(entry.key.split("/")[:depth])
        sizes[prefix] += entry.bytes
        newest[prefix] = max(newest.get(prefix, entry.modified), entry.modified)
    return sizes, newest


def _remove(db: Database, store: ObjectStore, waste: Waste, now: datetime) -> bool:
    """Remove it, unless somebody has come to need it."""
    if not waste.prefix.startswith("stages/"):
        _delete(store, store.list(f"{waste.prefix}/"))
        return True
    with db.write() as session:
        marked = (
            update(Output)
            .where(Output.prefix == waste.prefix, ~_needed())
            .where(or_(Output.deleting, Output.used_at < now - GRACE))
            .values(deleting=True, complete=False)
            .execution_options(synchronize_session=False)
        )
        session.execute(marked)
        row = session.get(Output, waste.prefix)
        if row is not None and not row.deleting:
            return False
    manifest = f"{waste.prefix}/{MANIFEST}"
    _delete(store, [manifest, *store.list(f"{waste.prefix}/")])
    with db.write() as session:
        row = session.get(Output, waste.prefix)
        if row is not None and row.deleting:
            session.delete(row)
    return True


def _delete(store: ObjectStore, keys: Iterable[str]) -> None:
    for key in keys:
        store.delete(key)
