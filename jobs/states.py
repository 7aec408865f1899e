"""The state machine: two tables, and the one function that writes `status`.

job:    queued ⇄ running → succeeded | failed | cancelled
        running → cancelling → cancelled | succeeded | failed
stage:  pending → queued ⇄ running → succeeded | failed | cancelled
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement


class JobStatus(StrEnum):
    """Where a job is. `cancelling`: a worker has been asked to stop and has not yet answered."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing follows."""
        return not JOB_TRANSITIONS[self]


class StageStatus(StrEnum):
    """Where a stage is. `pending`: an earlier stage has to end first."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing follows."""
        return not STAGE_TRANSITIONS[self]


_J, _S = JobStatus, StageStatus

JOB_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.QUEUED: frozenset({_J.RUNNING, _J.CANCELLED, _J.FAILED}),
    _J.RUNNING: frozenset({_J.QUEUED, _J.CANCELLING, _J.SUCCEEDED, _J.FAILED, _J.CANCELLED}),
    _J.CANCELLING: frozenset({_J.CANCELLED, _J.SUCCEEDED, _J.FAILED}),
    _J.SUCCEEDED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}

STAGE_TRANSITIONS: dict[StageStatus, frozenset[StageStatus]] = {
    _S.PENDING: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
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
    written along with it.

    Returns:
        Whether a row moved.
    """
    table: Any = JOB_TRANSITIONS if isinstance(to, JobStatus) else STAGE_TRANSITIONS
    sources = [status for status, targets in table.items() if to in targets]
    statement = (
        update(model)
        .where(model.status.in_(sources), *where)
        .values(status=to, **values)
        .execution_options(synchronize_session="fetch")
    )
    result: Any = session.execute(statement)
    return bool(result.rowcount)
