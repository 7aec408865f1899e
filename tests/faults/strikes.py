"""Faults, each of which strikes a running service and leaves it to recover: `strike(rig, job)`.

The job is one that runs or waits. A strike ends with everything started again that it stopped,
since something always starts it again: systemd, Kubernetes, a person.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import redis
from celery import Celery

from jobs import leases
from jobs.leases import Lease
from jobs.needs import ANY, queue_of
from tests.faults.part import Part
from tests.faults.proxy import Mood
from tests.faults.rig import Rig
from tests.servers import wait_until
from workers.app import RUN_STAGE

Strike = Callable[[Rig, str], None]


class TwoWinners(Exception):
    """A stage was given to two workers at once."""


AWAY_S = 5.0
"""How long a server is away."""


def kill_child(rig: Rig, job: str) -> None:
    """kill -9 of the stage that runs."""
    for worker in rig.workers:
        for child in worker.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ends by itself just now
                if any(job in word for word in child.cmdline()):
                    child.kill()


def kill_worker(rig: Rig, job: str) -> None:
    """kill -9 of the worker that runs the job, or of the first."""
    busy_worker(rig, job).restart()


def kill_relay(rig: Rig, job: str) -> None:
    rig.parts["relay"].restart()


def kill_api(rig: Rig, job: str) -> None:
    rig.parts["api"].restart()
    wait_until(rig.answers, 60, "the API answers again")


def deliver_twice(rig: Rig, job: str) -> None:
    """Every message about the job comes again, twice."""
    with Celery(broker=rig.settings.broker_url) as app:
        for stage in ("resolve", "train", "register"):
            for _ in range(2):
                app.send_task(RUN_STAGE, args=[job, stage], queue=queue_of(ANY))


def flush_redis(rig: Rig, job: str) -> None:
    """Every message is lost."""
    with redis.Redis(port=rig.redis_port) as client:
        client.flushall()


def restart_redis(rig: Rig, job: str) -> None:
    """It goes, and comes back empty."""
    rig.redis.close()
    time.sleep(AWAY_S)
    rig.start_redis()


def restart_postgres(rig: Rig, job: str) -> None:
    """Every connection is cut, and for a while there is nobody to connect to."""
    rig.database.stop()
    time.sleep(AWAY_S / 2)
    rig.database.start()


def restart_mlflow(rig: Rig, job: str) -> None:
    rig.mlflow.close()
    time.sleep(AWAY_S)
    rig.start_mlflow()


def store_fails(rig: Rig, job: str) -> None:
    """The object store answers 500, then takes its time, then is gone."""
    for mood in (Mood.ERRORS, Mood.SLOW, Mood.GONE):
        rig.s3.mood = mood
        time.sleep(AWAY_S)
    rig.s3.mood = Mood.WELL


def freeze_worker(rig: Rig, job: str) -> None:
    """A worker hangs for longer than its lease, and wakes."""
    worker = busy_worker(rig, job)
    worker.freeze()
    time.sleep(2 * rig.settings.lease_seconds)
    worker.wake()


def shift_clocks(rig: Rig, job: str) -> None:
    """One worker's clock jumps an hour ahead, the other's an hour back, the relay's a day."""
    for name, seconds in (("worker-1", 3600), ("worker-2", -3600), ("relay", 86400)):
        rig.shift(name, seconds)
    time.sleep(2 * rig.settings.lease_seconds)
    for name in rig.parts:
        rig.shift(name, 0)


def claim_at_once(rig: Rig, job: str) -> None:
    """Sixteen rivals claim at once what waits, and are never heard of again. One wins a stage."""
    won = sorted(lease.stage_id for lease in rival_claims(rig, 16))
    if len(won) != len(set(won)):
        raise TwoWinners(f"stages {won} were given away")


def rival_claims(rig: Rig, count: int) -> list[Lease]:
    """So many claims at one moment; the leases they won."""
    start, won = threading.Barrier(count), []

    def claim(name: str) -> None:
        start.wait()
        with rig.db.write() as session:
            lease = leases.claim(session, name, settings=rig.settings, now=rig.db.now())
        if lease is not None:
            won.append(lease)

    rivals = [threading.Thread(target=claim, args=(f"rival-{n}",)) for n in range(count)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    return won


def fill_disk(rig: Rig, job: str) -> None:
    """The workers' disk has no room; somebody makes some."""
    with full_disk(rig):
        time.sleep(AWAY_S)


@contextmanager
def full_disk(rig: Rig) -> Iterator[None]:
    """Not a byte can be written below the workers' run directories."""
    assert rig.small_disk, "this would fill the machine's own disk"
    ballast = rig.folder / "home" / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
    try:
        yield
    finally:
        ballast.unlink()


def busy_worker(rig: Rig, job: str) -> Part:
    """The worker with a process of the job, or the first one."""
    for worker in rig.workers:
        try:
            lines = [p.cmdline() for p in worker.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        if any(job in word for line in lines for word in line):
            return worker
    return rig.workers[0]


STRIKES: dict[str, Strike] = {
    "kill -9 of the child": kill_child,
    "kill -9 of a worker": kill_worker,
    "kill -9 of the relay": kill_relay,
    "kill -9 of the API": kill_api,
    "messages delivered twice": deliver_twice,
    "Redis flushed": flush_redis,
    "Redis restarted empty": restart_redis,
    "PostgreSQL restarted": restart_postgres,
    "MLflow restarted": restart_mlflow,
    "S3: 500, slow, gone": store_fails,
    "a worker frozen past its lease": freeze_worker,
    "clocks jump": shift_clocks,
    "sixteen rivals claim at once": claim_at_once,
    "the disk is full": fill_disk,
}


def strikes_of(rig: Rig) -> list[str]:
    """Names of the faults that can strike here: a disk can be filled where one was mounted."""
    return sorted(name for name, strike in STRIKES.items() if rig.small_disk or strike != fill_disk)
