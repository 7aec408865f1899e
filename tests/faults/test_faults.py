"""Jobs in spite of faults, on real servers: each ends well once, or fails for the true reason."""

from __future__ import annotations

import gc
import logging
import random
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from jobs import control, leases
from jobs.errors import LeaseLost
from jobs.ids import utcnow
from jobs.models import Stage
from jobs.states import StageStatus
from jobs.store_s3 import S3Store, s3_client
from tests.faults import strikes
from tests.faults.proxy import Mood
from tests.faults.rig import Rig
from tests.faults.strikes import STRIKES
from tests.servers import wait_until

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


def attempts(rig: Rig, job: str) -> dict[str, int]:
    """How often each stage was begun, where that was more than once."""
    began = [(e.data or {})["stage"] for e in rig.events(job) if e.type == "stage.running"]
    return {stage: began.count(stage) for stage in began if began.count(stage) > 1}


def retries(rig: Rig, job: str) -> list[tuple[str, str]]:
    """Stages that were tried again, and why."""
    data = [e.data or {} for e in rig.events(job) if e.type == "stage.retry"]
    return [(one["stage"], one["reason"]) for one in data]


def test_nothing_happens(service: Rig) -> None:
    job = service.submit()
    service.check(job)
    assert attempts(service, job) == {}


def test_the_child_is_killed(service: Rig) -> None:
    job = service.submit()
    service.until(job, "train", steps=2)
    service.child_of(job, "train").kill()
    service.check(job)
    assert retries(service, job) == [("train", "worker_lost")]
    assert any("starting at step" in e.message and "step 0" not in e.message
               for e in service.events(job))  # fmt: skip


@pytest.mark.parametrize("name", [name for name in STRIKES if name.startswith("kill -9")])
def test_kills_at_random_moments(service: Rig, name: str) -> None:
    """Two kills somewhere in the seconds that a job takes; the log says when."""
    job = service.submit()
    for _ in range(2):
        moment = random.uniform(0, 4)
        time.sleep(moment)
        log.warning("%s after %.3f s more", name, moment)
        STRIKES[name](service, job)
    service.check(job)


def test_the_worker_is_killed(service: Rig) -> None:
    job = service.submit()
    worker = service.worker_of(service.until(job, "train", steps=2))
    worker.kill()
    service.check(job)
    worker.start()
    assert retries(service, job) == [("train", "worker_lost")]


def test_the_relay_is_killed(service: Rig) -> None:
    jobs = [service.submit() for _ in range(2)]
    service.parts["relay"].kill()
    service.until(jobs[0], "train") if service.stage(jobs[0], "train").attempt else None
    waiting = service.submit()
    time.sleep(1)
    service.parts["relay"].start()
    for job in (*jobs, waiting):
        service.check(job)
        assert attempts(service, job) == {}


def test_the_api_is_killed(service: Rig) -> None:
    url, body = f"http://127.0.0.1:{service.port}/v1/jobs", {"target": "demo", "recipe": "quick"}
    headers = {"Idempotency-Key": "the-api-is-killed"}
    with httpx.Client(trust_env=False, timeout=30) as client:
        first = client.post(url, json=body, headers=headers)
        service.parts["api"].kill()
        with pytest.raises(httpx.TransportError):
            client.post(url, json=body, headers=headers)
        service.parts["api"].start()
        wait_until(service.answers, 60, "the API answers again")
        again = client.post(url, json=body, headers=headers)
    assert again.json()["id"] == first.json()["id"]
    service.check(first.json()["id"])


def test_messages_come_twice(service: Rig) -> None:
    jobs = [service.submit() for _ in range(3)]
    for job in jobs:
        strikes.deliver_twice(service, job)
    for job in jobs:
        service.check(job)
        assert attempts(service, job) == {}


def test_one_of_many_claims_wins(service: Rig) -> None:
    """Sixteen claims at once for one stage that waits, by workers that no message has woken."""
    for worker in service.workers:
        worker.kill()
    job = service.submit()
    assert [lease.job_id for lease in strikes.rival_claims(service, 16)] == [job]
    assert service.stage(job, "resolve").attempt == 1
    for worker in service.workers:
        worker.start()
    service.check(job)  # once the winner, who is nobody, has been missed
    assert retries(service, job) == [("resolve", "worker_lost")]


@pytest.mark.parametrize("strike", [strikes.flush_redis, strikes.restart_redis])
def test_redis_loses_all(service: Rig, strike: strikes.Strike) -> None:
    jobs = [service.submit() for _ in range(4)]
    service.until(jobs[0], "train")
    strike(service, jobs[0])
    jobs.append(service.submit())
    for job in jobs:
        service.check(job)


def test_postgres_restarts(service: Rig) -> None:
    jobs = [service.submit() for _ in range(2)]
    service.until(jobs[0], "train", steps=1)
    strikes.restart_postgres(service, jobs[0])
    for job in jobs:
        service.check(job)


def test_the_store_answers_500_then_is_slow_then_gone(service: Rig) -> None:
    job = service.submit()
    service.until(job, "train", steps=1)
    for mood, seconds in ((Mood.ERRORS, 5), (Mood.SLOW, 8), (Mood.GONE, 30)):
        service.s3.mood = mood
        time.sleep(seconds)
    other = service.submit()
    service.s3.mood = Mood.WELL
    for one in (job, other):
        service.check(one)


def test_mlflow_is_away_at_registration(service: Rig) -> None:
    service.mlflow.close()
    job = service.submit()
    service.ended(job)
    assert service.job(job).status == "succeeded"
    (draft,) = service.drafts(job)
    assert draft.mlflow_version is None
    service.start_mlflow()
    service.check(job)


def test_clocks_jump(service: Rig) -> None:
    """In full mode the database's clock counts: nobody loses a lease by another's clock."""
    job = service.submit()
    service.until(job, "train", steps=1)
    strikes.shift_clocks(service, job)
    late = service.submit()
    for one in (job, late):
        service.check(one)
        assert attempts(service, one) == {}


def test_a_frozen_worker_writes_nothing_once_it_wakes(service: Rig) -> None:
    job = service.submit()
    owner = service.until(job, "train", steps=2)
    frozen = service.worker_of(owner)
    frozen.freeze()
    wait_until(lambda: service.job(job).status.terminal, 120, "the other worker ends the job")
    before = [e.seq for e in service.events(job)]
    frozen.wake()
    wait_until(lambda: not service.processes(job), 30, "the stage that woke has ended")
    service.check(job)
    assert [e.seq for e in service.events(job)] == before
    assert retries(service, job) == [("train", "worker_lost")]
    workers = {(e.data or {})["worker"] for e in service.events(job) if e.type == "stage.running"}
    assert len(workers) == 2
    assert "lease lost" in frozen.log.read_text()


def test_a_stage_whose_lease_ran_out_cannot_be_written(service: Rig) -> None:
    """The same by hand: what a zombie says after its stage is another's leaves no trace."""
    for worker in service.workers:
        worker.kill()
    job = service.submit()
    with service.db.write() as session:
        zombie = leases.claim(session, "zombie", settings=service.settings, now=utcnow())
    assert zombie is not None
    wait_until(lambda: service.stage(job, "resolve").status == StageStatus.QUEUED, 60, "missed")
    with pytest.raises(LeaseLost), service.db.write() as session:
        leases.report(session, zombie, now=utcnow(), progress={"done": 1})
    for worker in service.workers:
        worker.start()
    service.check(job)


@pytest.fixture
def small_disk(service: Rig) -> Path:
    """The workers' run directories, on a disk that can be filled."""
    if not service.small_disk:
        pytest.skip("a small disk needs root, and the right to mount")
    return service.folder / "home"


def test_the_disk_is_full(service: Rig, small_disk: Path) -> None:
    job = service.submit()
    service.until(job, "train", steps=1)
    with strikes.full_disk(service):
        done = service.check(job, failed="disk_full")
    assert "disk" in (done.error or {})["message"]
    with service.db.write() as session:
        control.retry(session, job, settings=service.settings, now=utcnow())
    service.check(job)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_download_that_fills_the_disk_is_not_the_stores_fault(
    service: Rig, small_disk: Path
) -> None:
    """A stage that waited for the store would wait for ever, and say why falsely."""
    with closing(s3_client(service.settings)) as client:
        store = S3Store(client, "drafts")
        store.put_bytes("large", bytes(1 << 20))
        with strikes.full_disk(service), pytest.raises(OSError, match="No space"):
            store.get_file("large", small_disk / "large")
    gc.collect()  # s3transfer leaves the answer it could not write, socket and all


def test_ends_are_told_apart_from_waits(service: Rig) -> None:
    """A stage that waits for its retry is not stuck: it says until when."""
    job = service.submit()
    service.until(job, "train", steps=1)
    service.child_of(job, "train").kill()

    def waits() -> Stage | None:
        stage = service.stage(job, "train")
        return stage if stage.status == StageStatus.QUEUED else None

    wait_until(waits, 20, "the stage waits")
    until = service.stage(job, "train").not_before
    assert until is not None
    assert until - utcnow() < timedelta(seconds=service.settings.retry_cap_seconds)
    service.check(job)
