"""The outbox: each record once, a failing send later, a dead sender's records again."""

from __future__ import annotations

import threading
from collections import Counter

from jobs import service
from jobs.db import Database
from jobs.models import Outbox, OutboxKind
from jobs.outbox import relay
from jobs.settings import Settings
from jobs.spec import JobSpec
from tests.jobs.conftest import Clock


def submit(db: Database, settings: Settings, clock: Clock) -> str:
    with db.write() as s:
        spec = JobSpec(target="demo")
        return service.submit(s, spec, settings=settings, now=clock.now).job.id


def test_rival_relays_send_each_record_once(db: Database, settings: Settings, clock: Clock) -> None:
    jobs = {submit(db, settings, clock) for _ in range(10)}
    sent: list[str | None] = []

    def run() -> None:
        relay(db, OutboxKind.HINT, lambda r: sent.append(r.job_id), clock=clock)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert Counter(sent) == Counter(jobs)
    assert relay(db, OutboxKind.HINT, lambda r: sent.append(r.job_id), clock=clock) == 0


def test_a_failed_send_waits_and_is_tried_again(
    db: Database, settings: Settings, clock: Clock
) -> None:
    submit(db, settings, clock)
    tries: list[Outbox] = []

    def broken(record: Outbox) -> None:
        tries.append(record)
        raise ConnectionError("broker is away")

    assert relay(db, OutboxKind.HINT, broken, clock=clock) == 0
    assert relay(db, OutboxKind.HINT, broken, clock=clock) == 0
    assert len(tries) == 1
    clock.forward(5)
    assert relay(db, OutboxKind.HINT, tries.append, clock=clock) == 1
    assert tries[1].last_error == "ConnectionError: broker is away"


def test_a_sender_that_dies_is_followed_by_another(
    db: Database, settings: Settings, clock: Clock
) -> None:
    submit(db, settings, clock)

    def dies(record: Outbox) -> None:
        raise KeyboardInterrupt

    try:
        relay(db, OutboxKind.HINT, dies, clock=clock)
    except KeyboardInterrupt:
        pass
    sent: list[Outbox] = []
    assert relay(db, OutboxKind.HINT, sent.append, clock=clock) == 0
    clock.forward(61)
    assert relay(db, OutboxKind.HINT, sent.append, clock=clock) == 1


def test_kinds_are_kept_apart(db: Database, settings: Settings, clock: Clock) -> None:
    submit(db, settings, clock)
    assert relay(db, OutboxKind.MIRROR, lambda r: None, clock=clock) == 0
