"""What only PostgreSQL shows: real rivals for a claim, SKIP LOCKED, and the migrations there.

The server is a real one, from a wheel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from alembic import command
from sqlalchemy import inspect, select, text

from jobs import endings, leases, service
from jobs.db import Database, alembic_config, make_engine, migrate
from jobs.models import JobEvent, OutboxKind
from jobs.outbox import relay
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.states import JobStatus
from jobs.sweeper import sweep
from tests.jobs.conftest import Clock, migrate_at_once
from tests.servers import postgres

pytestmark = pytest.mark.e2e

QUICK = JobSpec(target="demo", recipe="quick", labels={"team": "a"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("pg")) as url:
        yield url


@pytest.fixture
def empty(server: str, settings: Settings) -> Settings:
    engine = make_engine(server)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return settings.model_copy(update={"database_url": server})


@pytest.fixture
def pg(empty: Settings) -> Iterator[tuple[Database, Settings]]:
    migrate(empty)
    db = Database(empty.database_url)
    yield db, empty
    db.close()


def submit(pg: tuple[Database, Settings], clock: Clock, key: str | None = None) -> str:
    db, settings = pg
    with db.write() as s:
        return service.submit(
            s, QUICK, settings=settings, now=clock.now, idempotency_key=key
        ).job.id


def all_at_once(count: int, call: object) -> None:
    gate = threading.Barrier(count)

    def run() -> None:
        gate.wait()
        call()  # type: ignore[operator]

    threads = [threading.Thread(target=run) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_migrations_up_and_down(pg: tuple[Database, Settings]) -> None:
    config = alembic_config(pg[1].database_url)
    command.check(config)
    command.downgrade(config, "base")
    engine = make_engine(pg[1].database_url)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_processes_that_start_together_migrate_once(empty: Settings) -> None:
    migrate_at_once(empty, 3)
    command.check(alembic_config(empty.database_url))


def test_rivals_for_two_jobs(pg: tuple[Database, Settings], clock: Clock) -> None:
    db, settings = pg
    jobs = [submit(pg, clock), submit(pg, clock)]
    won: list[str] = []

    def claim() -> None:
        with db.write() as s:
            if lease := leases.claim(s, "w", settings=settings, now=clock.now):
                won.append(lease.job_id)

    all_at_once(12, claim)
    assert sorted(won) == sorted(jobs)


def test_rivals_under_one_idempotency_key(pg: tuple[Database, Settings], clock: Clock) -> None:
    made: list[str] = []
    all_at_once(6, lambda: made.append(submit(pg, clock, key="k")))
    assert len(made) == 6
    assert len(set(made)) == 1
    with pg[0].read() as s:
        assert len(service.list_jobs(s, labels={"team": "a"}).items) == 1


def test_eight_relays_send_each_record_once(pg: tuple[Database, Settings], clock: Clock) -> None:
    jobs = [submit(pg, clock) for _ in range(30)]
    sent: list[str] = []
    all_at_once(
        8, lambda: relay(pg[0], OutboxKind.HINT, lambda r: sent.append(r.job_id), clock=clock)
    )
    while relay(pg[0], OutboxKind.HINT, lambda r: sent.append(r.job_id), clock=clock):
        pass
    assert sorted(sent) == sorted(jobs)


def test_events_have_no_gap_under_rivals(pg: tuple[Database, Settings], clock: Clock) -> None:
    db, settings = pg
    job_id = submit(pg, clock)
    with db.write() as s:
        lease = leases.claim(s, "w", settings=settings, now=clock.now)
    assert lease is not None

    def write() -> None:
        with db.write() as s:
            leases.report(s, lease, now=clock.now, events=[leases.Event("log", "x")] * 3)

    all_at_once(6, write)
    with db.read() as s:
        seqs = s.scalars(select(JobEvent.seq).order_by(JobEvent.seq)).all()
    assert seqs == list(range(1, 21))
    assert job_id


def test_cancel_finish_and_sweep_at_once_leave_one_end(
    pg: tuple[Database, Settings], clock: Clock
) -> None:
    db, settings = pg
    job_id = submit(pg, clock)
    with db.write() as s:
        lease = leases.claim(s, "w", settings=settings, now=clock.now)
    assert lease is not None
    later = clock.forward(settings.lease_seconds + 1)

    def cancel() -> None:
        with db.write() as s:
            service.request_cancel(s, job_id, now=later)

    def finish() -> None:
        with db.write() as s:
            endings.finish(s, lease, now=later, summary={})

    calls = [cancel, finish, lambda: sweep(db, settings, later)]
    gate = threading.Barrier(3)

    def run(i: int) -> None:
        gate.wait()
        try:
            calls[i]()
        except leases.LeaseLost:
            return

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sweep(db, settings, later)
    with db.read() as s:
        assert service.get_job(s, job_id).status == JobStatus.CANCELLED
