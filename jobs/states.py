"""The state machine: two tables, and the one function that writes `status`.

job:    queued ⇄ running → succeeded | failed | cancelled
        running → cancelling → cancelled | succeeded | failed
        queued | running → (pausing →) paused → queued
        failed | cancelled → queued, when it is tried again
stage:  pending → queued ⇄ running → succeeded | failed | cancelled
        failed | cancelled | succeeded → queued | pending, when its job is tried again
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from jobs.rows import changed


class JobStatus(StrEnum):
    """Where a job is. `cancelling`, `pausing`: a worker has been asked to stop and has not yet
    answered."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing follows, unless somebody asks for it."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


class StageStatus(StrEnum):
    """Where a stage is. `pending`: an earlier stage has to end first."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_J, _S = JobStatus, StageStatus

JOB_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.QUEUED: frozenset({_J.RUNNING, _J.PAUSED, _J.CANCELLED, _J.FAILED}),
    _J.RUNNING: frozenset(
        {_J.QUEUED, _J.PAUSING, _J.PAUSED, _J.CANCELLING, _J.SUCCEEDED, _J.FAILED, _J.CANCELLED}
    ),
    _J.PAUSING: frozenset(
        {_J.RUNNING, _J.PAUSED, _J.CANCELLING, _J.SUCCEEDED, _J.FAILED, _J.CANCELLED}
    ),
    _J.PAUSED: frozenset({_J.QUEUED, _J.CANCELLED}),
    _J.CANCELLING: frozenset({_J.CANCELLED, _J.SUCCEEDED, _J.FAILED}),
    _J.SUCCEEDED: frozenset(),
    _J.FAILED: frozenset({_J.QUEUED}),
    _J.CANCELLED: frozenset({_J.QUEUED}),
}

STAGE_TRANSITIONS: dict[StageStatus, frozenset[StageStatus]] = {
    _S.PENDING: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset({_S.QUEUED, _S.PENDING}),
    _S.FAILED: frozenset({_S.QUEUED, _S.PENDING}),
    _S.CANCELLED: frozenset({_S.QUEUED, _S.PENDING}),
}


def transition(
    session: Session,
    model: Any,
    to: JobStatus | StageStatus,
    *where: ColumnElement[bool],
    **values: Any,
) -> bool:
    """Move the rows of `model` that match `where` to `to`, if their status allows it.

    One UPDATE guarded by the allowed former statuses, so that of two rivals one wins. `values` are
    written along with it; a job that is not to be run waits for nothing.

    Returns:
        Whether a row moved.
    """
    table: Any = JOB_TRANSITIONS if isinstance(to, JobStatus) else STAGE_TRANSITIONS
    if isinstance(to, JobStatus) and to not in (JobStatus.QUEUED, JobStatus.RUNNING):
        values = {"waiting": None, **values}
    sources = [status for status, targets in table.items() if to in targets]
    statement = update(model).where(model.status.in_(sources), *where).values(status=to, **values)
    return changed(session, statement, synchronize="fetch")
