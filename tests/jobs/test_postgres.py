"""What only PostgreSQL shows: real rivals for a claim, SKIP LOCKED, and the migrations there.

The server is a real one, from a wheel.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from alembic import command
from sqlalchemy import inspect, select, text

from jobs import drafts, endings, leases, service, webhooks
from jobs.db import Database, alembic_config, make_engine, migrate
from jobs.errors import LeaseLost, QuotaExceeded
from jobs.events import lock_job
from jobs.models import Draft, JobEvent, Outbox, OutboxKind
from jobs.outbox import relay
from jobs.quotas import NEAR, lock_owner
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.states import JobStatus
from jobs.sweeper import sweep
from jobs.webhooks_tables import WebhookDelivery
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


def test_time_is_the_servers(pg: tuple[Database, Settings]) -> None:
    with pg[0].read() as s:
        said = s.scalars(text("SELECT clock_timestamp()")).one()
    assert timedelta() <= pg[0].now() - said < timedelta(seconds=5)


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


def test_a_claim_passes_over_what_a_rival_is_taking(
    pg: tuple[Database, Settings], clock: Clock
) -> None:
    db, settings = pg
    jobs = [submit(pg, clock), submit(pg, clock)]
    with db.write() as one, db.write() as other:
        other.execute(text("SET LOCAL lock_timeout = '1s'"))
        first = leases.claim(one, "a", settings=settings, now=clock.now)
        second = leases.claim(other, "b", settings=settings, now=clock.now)
        assert first is not None
        assert second is not None
        assert {first.job_id, second.job_id} == set(jobs)


def test_a_claim_waits_for_a_job_that_no_rival_holds(
    pg: tuple[Database, Settings], clock: Clock
) -> None:
    db, settings = pg
    job = submit(pg, clock)
    held, won = threading.Event(), []

    def claim() -> None:
        held.wait(10)
        with db.write() as s:
            won.append(leases.claim(s, "w", settings=settings, now=clock.now))

    worker = threading.Thread(target=claim)
    worker.start()
    with db.write() as s:
        lock_job(s, job)
        held.set()
        worker.join(0.3)
        assert worker.is_alive()
    worker.join(10)
    assert [lease and lease.job_id for lease in won] == [job]


def test_rivals_under_one_idempotency_key(pg: tuple[Database, Settings], clock: Clock) -> None:
    made: list[str] = []
    all_at_once(6, lambda: made.append(submit(pg, clock, key="k")))
    assert len(made) == 6
    assert len(set(made)) == 1
    with pg[0].read() as s:
        assert len(service.list_jobs(s, labels={"team": "a"}).items) == 1


def test_rivals_for_the_last_of_a_quota(pg: tuple[Database, Settings], clock: Clock) -> None:
    few = pg[0], pg[1].model_copy(update={"max_active_jobs": 2})
    made: list[str] = []
    refused: list[str] = []

    def one() -> None:
        try:
            made.append(submit(few, clock))
        except QuotaExceeded as e:
            refused.append(str(e))

    all_at_once(6, one)
    assert (len(made), len(refused)) == (2, 4)


def test_far_from_its_limit_a_submission_waits_for_no_other(
    pg: tuple[Database, Settings], clock: Clock
) -> None:
    far = pg[0], pg[1].model_copy(update={"max_active_jobs": 2 * NEAR})
    made: list[str] = []
    one = threading.Thread(target=lambda: made.append(submit(far, clock)))
    with pg[0].write() as other:
        lock_owner(other, "local")  # as a submission that is not done yet
        one.start()
        one.join(timeout=20)
        assert len(made) == 1


def test_eight_relays_send_each_record_once(pg: tuple[Database, Settings], clock: Clock) -> None:
    jobs = [submit(pg, clock) for _ in range(30)]
    sent: list[str | None] = []
    all_at_once(
        8, lambda: relay(pg[0], OutboxKind.HINT, lambda r: sent.append(r.job_id), clock=clock)
    )
    while relay(pg[0], OutboxKind.HINT, lambda r: sent.append(r.job_id), clock=clock):
        pass
    assert Counter(sent) == Counter(jobs)


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

    calls: list[Callable[[], object]] = [cancel, finish, lambda: sweep(db, settings, later)]
    gate = threading.Barrier(3)

    def run(i: int) -> None:
        gate.wait()
        try:
            calls[i]()
        except LeaseLost:
            return

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sweep(db, settings, later)
    with db.read() as s:
        assert service.get_job(s, job_id).status == JobStatus.CANCELLED


def test_rivals_promote_one_champion_each_after_the_other(
    pg: tuple[Database, Settings], clock: Clock
) -> None:
    db, settings = pg
    ids = [_draft(db, settings, clock, n) for n in range(6)]
    gate = threading.Barrier(len(ids))

    def promote(draft_id: str) -> None:
        gate.wait()
        with db.write() as session:
            drafts.promote(session, drafts.get_draft(session, draft_id), now=clock())

    threads = [threading.Thread(target=promote, args=(one,)) for one in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with db.read() as session:
        aliases = sorted(session.scalars(select(Draft.alias)))
        told = session.scalars(select(WebhookDelivery.type)).all()
    assert aliases == ["candidate"] * 4 + ["champion", "previous"]
    assert sorted(told) == ["draft.promoted"] * 6 + ["draft.registered"] * 6


def test_an_attempt_at_a_webhook_is_written_down(
    pg: tuple[Database, Settings], clock: Clock
) -> None:
    db, settings = pg
    _draft(db, settings, clock, 0)
    with db.write() as session:
        delivery_id = session.scalars(select(WebhookDelivery.id)).one()
        webhooks.record(session, delivery_id, webhooks.Outcome(status=500), clock())
    with db.read() as session:
        found = session.scalars(select(WebhookDelivery)).one()
        due = session.scalars(select(Outbox.available_at).where(Outbox.kind == "webhook")).all()
    assert (found.status, found.attempts) == ("pending", 1)
    assert sorted(due) == [clock(), found.next_attempt_at]


def _draft(db: Database, settings: Settings, clock: Clock, n: int) -> str:
    """A registered draft, of an owner whose endpoint hears of drafts."""
    wants = ["draft.registered", "draft.promoted"]
    with db.write() as session:
        if not webhooks.list_endpoints(session, "key_a"):
            webhooks.add_endpoint(
                session, "key_a", "https://ci.example.com", events=wants, description="",
                all_owners=False, now=clock(),
            )  # fmt: skip
        job = service.submit(session, QUICK, settings=settings, now=clock(), owner="key_a").job
        draft = Draft(
            id=f"dft_0{n}", job_id=job.id, owner="key_a", name="eagle3--demo", target="demo",
            target_resolved="demo@sha256:abc", weights_sha256="w" * 64,
            tokenizer_sha256="t" * 64, template_sha256="m" * 64, capture_layers=[2], metrics={},
            uri=f"drafts/dft_0{n}", manifest_sha256="0" * 64, created_at=clock(),
        )  # fmt: skip
        return drafts.add_draft(session, draft, champion=False, now=clock()).id
