"""Engine and sessions for SQLite and PostgreSQL, and the migrations run from code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs.clock import ServerClock
from jobs.errors import Unavailable
from jobs.settings import Settings

CONNECTIONS = 15
"""Most that one process has at once. It keeps what it has opened: a new one costs PostgreSQL a
process, just when much is asked."""
MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"


class Database:
    """Two kinds of session: `read()` and `write()`. Both end their transaction on leaving.

    A write session on SQLite takes the write lock when it begins (BEGIN IMMEDIATE), so that it
    cannot fail half-way for want of it. Objects stay readable after the session is closed. `now()`
    is the time that all who share the database agree on.
    """

    def __init__(self, url: str) -> None:
        self.engine = make_engine(url)
        writer = self.engine.execution_options(begin="IMMEDIATE")
        self._reader = sessionmaker(_reading(self.engine), expire_on_commit=False)
        event.listen(self._reader, "before_flush", _refuse)
        self._writer = sessionmaker(writer, expire_on_commit=False)
        self.now = ServerClock(self.engine)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that writes nothing."""
        with self._reader() as session:
            yield session  # closing leaves what was read readable

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits on leaving, or rolls back when the block raises."""
        with self._writer.begin() as session:
            yield session

    def ping(self) -> None:
        """Ask the database for nothing.

        Raises:
            Unavailable: it does not answer.
        """
        try:
            with self.engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except SQLAlchemyError as e:
            raise Unavailable(f"database does not answer: {type(e).__name__}") from e

    def close(self) -> None:
        self.engine.dispose()


def make_engine(url: str) -> Engine:
    """An engine for a SQLite or PostgreSQL URL; the driver of a bare `postgresql://` is psycopg."""
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True, pool_size=CONNECTIONS, max_overflow=0)
    if parsed.database and parsed.database != ":memory:":
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy says BEGIN, not the driver
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        mode = connection.get_execution_options().get("begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {mode}")

    return engine


def _reading(engine: Engine) -> Engine:
    """For reading. PostgreSQL's own isolation shows each statement what was committed before it, in
    a transaction or not, so none is begun and ended: two round trips less. SQLite's transaction
    shows one state."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _refuse(*_: Any) -> None:
    raise AssertionError("a read session was about to write; use Database.write()")


def migrate(settings: Settings, revision: str = "head") -> None:
    """Bring the database to a revision (by default the newest)."""
    command.upgrade(alembic_config(settings.database_url), revision)


def alembic_config(url: str) -> Config:
    """Alembic's configuration for a database, without its ini file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config
