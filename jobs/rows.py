"""Rows that are added by the path that is used most, and changes that rivals may be making, too."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from sqlalchemy import Update, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs.base import Base


def add_rows(session: Session, *rows: Base) -> None:
    """INSERT rows, those of one table at once: they stand together and set the same columns. The
    session does not get to know them: as its objects they cost three to four times the CPU time."""
    connection = session.connection()
    for table, same in groupby(rows, key=_table):
        values = [{k: v for k, v in vars(row).items() if k in table.columns} for row in same]
        connection.execute(insert(table), values)


def changed(session: Session, statement: Update, *, synchronize: str | bool = False) -> bool:
    """Make an UPDATE. Returns whether it found a row.

    Args:
        synchronize: SQLAlchemy's `synchronize_session`: whether objects that the session holds
            change, too.
    """
    options = {"synchronize_session": synchronize}
    result: Any = session.execute(statement, execution_options=options)
    return bool(result.rowcount)


def change_or_add(
    session: Session,
    table: type[Base],
    key: dict[str, Any],
    change: dict[str, Any],
    new: dict[str, Any],
) -> None:
    """Change the row of a key, or make it with the values of `new`."""
    statement = update(table).filter_by(**key).values(**change)
    if changed(session, statement):
        return
    try:
        with session.begin_nested():
            session.add(table(**key, **new))
            session.flush()
    except IntegrityError:  # a rival made it
        changed(session, statement)


def _table(row: Base) -> Any:
    return row.__table__
