"""Stage outputs in the object store as the database knows them, so that jobs share them safely.

A row is written before the first byte. Whoever wants to use or to write a prefix touches its row
first (`find`, `hold`), whoever wants to remove it marks the row first (`jobs.garbage`): each sees
the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Update, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs.models import Job, Output, Stage
from jobs.rows import changed
from jobs.states import StageStatus


@dataclass(frozen=True)
class Found:
    """Outputs that exist, and a job of the same owner that made or used them."""

    prefix: str
    job_id: str | None


def find(session: Session, stage: str, digest: str, *, owner: str, now: datetime) -> Found | None:
    """Outputs that some job has stored for this digest, from now on in use: the first complete."""
    query = (
        select(Output.prefix)
        .where(Output.stage == stage, Output.digest == digest, Output.complete, ~Output.deleting)
        .order_by(Output.created_at, Output.prefix)
    )
    for prefix in session.scalars(query).all():
        if touch(session, prefix, now):
            own = select(Stage.job_id).join(Job, Job.id == Stage.job_id)
            own = own.where(
                Stage.uri == prefix, Stage.status == StageStatus.SUCCEEDED, Job.owner == owner
            )
            return Found(prefix, session.scalar(own.order_by(Stage.job_id).limit(1)))
    return None


def hold(
    session: Session,
    prefix: str,
    *,
    stage: str,
    digest: str,
    owner: str,
    size: int,
    now: datetime,
) -> bool:
    """Say that a prefix is in use and, if need be, that it is about to be filled. False while what
    was there is being removed: nothing may be written then."""
    if touch(session, prefix, now):
        return True
    row = Output(
        prefix=prefix,
        stage=stage,
        digest=digest,
        owner=owner,
        bytes=size,
        created_at=now,
        used_at=now,
        complete=False,
        deleting=False,
    )
    try:
        with session.begin_nested():
            session.add(row)
            session.flush()
    except IntegrityError:  # it is being removed, or a rival wrote it
        return touch(session, prefix, now)
    return True


def touch(session: Session, prefix: str, now: datetime) -> bool:
    """Say that a prefix is in use. False when there is none, or when it is being removed."""
    return changed(session, _of(prefix).where(~Output.deleting).values(used_at=now))


def completed(session: Session, prefix: str, now: datetime) -> None:
    """Say that all of it is stored."""
    changed(session, _of(prefix).values(used_at=now, complete=True))


def broken(session: Session, prefix: str) -> None:
    """Say that it is not as its manifest says, or gone: nobody uses it until it is stored anew."""
    changed(session, _of(prefix).values(complete=False))


def _of(prefix: str) -> Update:
    return update(Output).where(Output.prefix == prefix)
