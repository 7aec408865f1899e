"""Whose time it is: the server's where there is one, and it goes on while that is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from jobs.clock import READ_EVERY_S, ServerClock

SERVER = datetime(2030, 5, 1, 12, tzinfo=UTC)
HERE = datetime(2026, 1, 1, tzinfo=UTC)


class Engine:
    """An engine whose server's clock stands, and can be set."""

    def __init__(self, dialect: str = "postgresql") -> None:
        self.dialect = SimpleNamespace(name=dialect)
        self.now, self.away, self.asked = SERVER, False, 0

    @contextmanager
    def connect(self) -> Iterator[Any]:
        self.asked += 1
        if self.away:
            raise OperationalError("SELECT", {}, Exception("away"))
        answer = SimpleNamespace(scalar_one=lambda: self.now)
        yield SimpleNamespace(execute=lambda _: answer)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr("jobs.clock.utcnow", lambda: HERE)
    return [100.0]


def make(engine: Engine, steady: list[float]) -> ServerClock:
    return ServerClock(engine, lambda: steady[0])  # type: ignore[arg-type]


def test_the_servers_time_is_carried_on_between_two_readings(steady: list[float]) -> None:
    engine = Engine()
    clock = make(engine, steady)
    assert clock() == SERVER
    steady[0] += READ_EVERY_S - 1
    assert clock() == SERVER + timedelta(seconds=READ_EVERY_S - 1)
    assert engine.asked == 1


def test_a_server_that_is_set_right_is_followed(steady: list[float]) -> None:
    engine = Engine()
    clock = make(engine, steady)
    clock()
    engine.now = SERVER - timedelta(hours=1)
    steady[0] += READ_EVERY_S
    assert clock() == SERVER - timedelta(hours=1)


def test_time_goes_on_while_the_server_is_away(steady: list[float]) -> None:
    engine = Engine()
    clock = make(engine, steady)
    clock()
    engine.away = True
    steady[0] += READ_EVERY_S + 5
    assert clock() == SERVER + timedelta(seconds=READ_EVERY_S + 5)
    steady[0] += 1
    assert clock() == SERVER + timedelta(seconds=READ_EVERY_S + 6)
    assert engine.asked == 2  # it is not asked with every call


def test_a_server_that_has_never_answered_leaves_this_machines_time(steady: list[float]) -> None:
    engine = Engine()
    engine.away = True
    assert make(engine, steady)() == HERE


def test_sqlite_has_no_clock_of_its_own(steady: list[float]) -> None:
    engine = Engine("sqlite")
    assert make(engine, steady)() == HERE
    assert engine.asked == 0
