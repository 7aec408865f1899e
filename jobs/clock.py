"""The time that rows are written in: the database server's, not this machine's.

Leases, waits and outbox records are written by one machine and compared by another, whose clocks
may differ by hours, and may jump. So on PostgreSQL all of them go by the server's clock, carried
on by a monotonic one between two readings. SQLite serves one machine, whose own clock it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from jobs.ids import utcnow

READ_EVERY_S = 30.0


class ServerClock:
    """Calling it gives the time, UTC. It never waits for a database that is away: once read, the
    time goes on without it; before that it is this machine's."""

    def __init__(self, engine: Engine, steady: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._steady = engine, steady
        self._lock = threading.Lock()
        self._anchor: datetime | None = None
        self._read_at = -READ_EVERY_S

    def __call__(self) -> datetime:
        if self._engine.dialect.name == "sqlite":
            return utcnow()
        with self._lock:
            if self._steady() - self._read_at >= READ_EVERY_S:
                self._read()
            if self._anchor is None:
                return utcnow()
            return self._anchor + timedelta(seconds=self._steady() - self._anchored_at)

    def _read(self) -> None:
        self._read_at = self._steady()
        try:
            with self._engine.connect() as connection:
                now = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        except SQLAlchemyError:
            return  # asked again when the next reading is due
        self._anchor, self._anchored_at = now, self._steady()
