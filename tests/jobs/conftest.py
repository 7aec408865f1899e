"""A migrated-by-metadata SQLite database, settings in a temporary home, and a clock to turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from jobs.base import Base
from jobs.db import Database, migrate
from jobs.settings import Settings
from tests.servers import postgres
from tests.settings import settings_of


@dataclass
class Clock:
    """A time that moves only when told to."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(home=tmp_path / "home", max_active_jobs=50)


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server, for as long as the tests run."""
    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.e2e)])
def each_db(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Database]:
    """An empty database of each kind that the service runs on."""
    if request.param == "sqlite":
        yield request.getfixturevalue("db")
        return
    database = Database(request.getfixturevalue("postgres_url"))
    Base.metadata.drop_all(database.engine)
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


def migrate_at_once(settings: Settings, count: int) -> None:
    """Migrate the settings' database from so many processes in the same moment."""
    new = multiprocessing.get_context("spawn")
    gate = (new.Barrier(count),)
    with ProcessPoolExecutor(count, new, initializer=_meet, initargs=gate) as pool:
        for done in [pool.submit(_migrate, settings) for _ in range(count)]:
            done.result()


_gate: Barrier
"""Of a process that `migrate_at_once` has started."""


def _meet(gate: Barrier) -> None:
    global _gate
    _gate = gate


def _migrate(settings: Settings) -> None:
    _gate.wait(120)
    migrate(settings)
