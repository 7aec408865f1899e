"""A worker's runtime on SQLite and a directory store, driven by a stand-in for the eagle3 CLI."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import service
from jobs.base import Base
from jobs.db import Database
from jobs.ids import utcnow
from jobs.models import Job, JobEvent
from jobs.spec import JobSpec
from jobs.store import open_store
from tests.settings import settings_of
from workers.runtime import Runtime

FAKE = Path(__file__).with_name("fake_eagle3.py")

MakeRuntime = Callable[..., Runtime]


@pytest.fixture
def make_runtime(tmp_path: Path) -> Iterator[MakeRuntime]:
    """`make_runtime(mode, **settings)`: runtimes that share a database and a store, each with run
    directories of its own when `machine` differs."""
    databases: list[Database] = []

    def make(mode: str = "ok", machine: str = "one", **changes: Any) -> Runtime:
        values: dict[str, Any] = {
            "home": tmp_path / "home",
            "runs_dir": tmp_path / machine / "runs",
            "stage_command": (sys.executable, "-I", "-S", str(FAKE), mode),
            "heartbeat_seconds": 0.05,
            "retry_base_seconds": 0.001,
            "stop_grace_seconds": 5.0,
            **changes,
        }
        settings = settings_of(**values)
        db = Database(settings.database_url)
        databases.append(db)
        Base.metadata.create_all(db.engine)
        return Runtime(settings, db, open_store(settings), machine, threading.Event(), utcnow)

    yield make
    for db in databases:
        db.close()


def submit(rt: Runtime, **spec: Any) -> str:
    with rt.db.write() as session:
        made = JobSpec.model_validate({"target": "demo", "recipe": "quick", **spec})
        return service.submit(session, made, settings=rt.settings, now=utcnow()).job.id


def job_of(rt: Runtime, job_id: str) -> Job:
    with rt.db.read() as session:
        return service.get_job(session, job_id)


def events_of(rt: Runtime, job_id: str) -> list[JobEvent]:
    with rt.db.read() as session:
        return service.list_events(session, job_id, limit=1000)
