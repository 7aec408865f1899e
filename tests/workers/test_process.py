"""The worker and the relay as processes of their own: nothing is lost when they are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jobs import service
from jobs.db import Database, migrate
from jobs.ids import utcnow
from jobs.models import Job, JobEvent, Stage
from jobs.spec import JobSpec
from jobs.states import JobStatus
from tests.settings import settings_of
from tests.workers.conftest import FAKE

pytestmark = pytest.mark.e2e

WORKER = ("-m", "celery", "-A", "workers.app", "worker", "--without-gossip", "--without-mingle")
RELAY = ("-m", "workers.relay")
ROOT = FAKE.parents[2]


class Service:
    """Real processes on an embedded home."""

    def __init__(self, home: Path, mode: str = "waits@train") -> None:
        command = [sys.executable, "-I", "-S", str(FAKE), mode]
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("UPDRAFT_")},
            "UPDRAFT_HOME": str(home),
            "UPDRAFT_LEASE_SECONDS": "2",
            "UPDRAFT_HEARTBEAT_SECONDS": "0.5",
            "UPDRAFT_SWEEP_SECONDS": "0.5",
            "UPDRAFT_RETRY_BASE_SECONDS": "0.1",
            "UPDRAFT_MLFLOW_PORT": "1",
            "UPDRAFT_STAGE_COMMAND": json.dumps(command),
        }
        self.settings = settings_of(home=home)
        migrate(self.settings)
        self.db = Database(self.settings.database_url)
        self.log = (home / "log").open("wb")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=self.env, stdout=self.log, stderr=self.log
        )
        self.processes.append(process)
        return process

    def submit(self) -> str:
        with self.db.write() as s:
            spec = JobSpec(target="demo", recipe="quick")
            return service.submit(s, spec, settings=self.settings, now=utcnow()).job.id

    def job(self, job_id: str) -> Job:
        with self.db.read() as s:
            return service.get_job(s, job_id)

    def train(self, job_id: str) -> Stage:
        return next(s for s in self.job(job_id).stages if s.name == "train")

    def events(self, job_id: str) -> list[JobEvent]:
        with self.db.read() as s:
            return service.list_events(s, job_id, limit=1000)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.db.close()
        self.log.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path / "home")
    yield found
    found.close()


def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_a_killed_worker_comes_back_and_training_goes_on(running: Service) -> None:
    running.start(*RELAY)
    worker = running.start(*WORKER)
    job_id = running.submit()
    until(lambda: running.train(job_id).checkpoint is not None)
    children = psutil.Process(worker.pid).children(recursive=True)
    assert children
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    running.start(*WORKER)
    until(lambda: running.job(job_id).status == JobStatus.SUCCEEDED)
    assert running.train(job_id).attempt == 2
    assert "starting at step 3" in [e.message for e in running.events(job_id)]
    assert not any(child.is_running() for child in children)


def test_a_worker_told_to_go_saves_its_stage_and_gives_it_back(running: Service) -> None:
    running.start(*RELAY)
    worker = running.start(*WORKER)
    job_id = running.submit()
    until(lambda: running.train(job_id).checkpoint is not None)
    worker.terminate()
    assert worker.wait(timeout=90) == 0
    train = running.train(job_id)
    assert (train.status, train.attempt) == ("queued", 0)
    running.start(*WORKER)
    until(lambda: running.job(job_id).status == JobStatus.SUCCEEDED)
    assert running.train(job_id).attempt == 1
