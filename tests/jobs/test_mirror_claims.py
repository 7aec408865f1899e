"""Claims on what is copied to the model registry: one holder, and an end to those who vanish."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import select

from jobs import mirror_claims
from jobs.db import Database
from jobs.errors import Claimed
from jobs.ids import utcnow
from jobs.mirror_claims import HELD, claimed
from jobs.models import MirrorClaim
from tests.jobs.conftest import Clock
from tests.servers import wait_until


def test_one_at_a_time_and_others_beside_it(each_db: Database, clock: Clock) -> None:
    with claimed(each_db, "model a", clock):
        with pytest.raises(Claimed, match="another relay copies model a"):
            claimed(each_db, "model a", clock).__enter__()
        with claimed(each_db, "model b", clock):
            pass
    with claimed(each_db, "model a", clock):
        pass
    with each_db.read() as session:
        assert session.scalars(select(MirrorClaim)).all() == []


def test_rivals_for_one_that_was_left(each_db: Database, clock: Clock) -> None:
    with each_db.write() as session:
        session.add(MirrorClaim(thing="m", token="dead", until=clock.now))
    gate, done, won = threading.Barrier(6), threading.Event(), []

    def run() -> None:
        gate.wait()
        try:
            with claimed(each_db, "m", clock):
                won.append(1)
                done.wait(20)
        except Claimed:
            return

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(t.is_alive() for t in threads) == 1, 20, "all but one are refused")
    done.set()
    for thread in threads:
        thread.join()
    assert won == [1]


def test_who_was_not_heard_of_finds_out_before_it_makes_anything(
    db: Database, clock: Clock
) -> None:
    with claimed(db, "m", clock) as hold:
        hold()
        clock.forward(HELD.total_seconds())
        with claimed(db, "m", clock) as rival:
            with pytest.raises(Claimed, match="took m over"):
                hold()
            rival()
        with pytest.raises(Claimed):
            hold()


def test_it_is_held_for_as_long_as_it_takes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_claims, "RENEWED_S", 0.02)

    def until() -> float:
        with db.read() as session:
            return session.scalars(select(MirrorClaim.until)).one().timestamp()

    with claimed(db, "m", utcnow):
        first = until()
        time.sleep(0.05)
        wait_until(lambda: until() > first, 20, "it is renewed")
