"""Hints through a real Redis: the settings only it has, and a queue that is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from jobs.states import JobStatus
from tests.servers import redis_server
from tests.workers.test_process import RELAY, WORKER, Service, until

pytestmark = pytest.mark.e2e


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path) as url:
        yield url


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
