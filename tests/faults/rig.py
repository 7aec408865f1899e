"""The whole service on real servers, in parts that can be struck one by one.

PostgreSQL, Redis, SeaweedFS behind a proxy, MLflow; API, relay and two workers, each of these as on
a machine of its own: workers have their own run directories. Stages are the stand-ins of
`tests/workers/fake_eagle3.py`, of which training takes 2.4 s and keeps a checkpoint each step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil
from mlflow.tracking import MlflowClient
from sqlalchemy import select

from jobs import service
from jobs.db import Database, migrate
from jobs.ids import new_id, utcnow
from jobs.models import Draft, Job, JobEvent, Stage
from jobs.settings import Settings
from jobs.spec import JobSpec
from tests.faults.part import ROOT, Part, processes
from tests.faults.proxy import Mood, Proxy, proxy
from tests.servers import (
    S3_KEY,
    S3_SECRET,
    Postgres,
    free_port,
    mlflow_server,
    postgres_server,
    redis_server,
    seaweedfs,
    wait_until,
)
from tests.settings import settings_of

FAKE = ROOT / "tests" / "workers" / "fake_eagle3.py"
PATIENCE_S = 150.0
SHORT = {
    "LEASE_SECONDS": "4", "HEARTBEAT_SECONDS": "1", "SWEEP_SECONDS": "1", "RESEND_SECONDS": "4",
    "RETRY_BASE_SECONDS": "0.5", "RETRY_CAP_SECONDS": "2", "STOP_GRACE_SECONDS": "5",
    "GC_SECONDS": "0", "UPLOAD_CHECKPOINTS": "true", "MAX_ATTEMPTS": "5",
    "REQUESTS_PER_SECOND": "1000",
}  # fmt: skip
"""Waits of seconds in place of minutes."""
DISK = "256m"
"""The disk of the workers' run directories, where this user may mount one."""


class Broken(StrEnum):
    """What must never be true of a job, whatever happened to it."""

    STUCK = "job stuck"
    GAP = "gap in a job's events"
    ENDS = "job that ended twice, or without saying so"
    DRAFTS = "draft doubled, missing, or of a failed job"
    VERSIONS = "version doubled or missing in MLflow"
    LEFT = "process left behind"


@dataclass
class Rig:
    """Servers and service; `open` starts all of it."""

    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)
    redis: ExitStack = field(default_factory=ExitStack)
    mlflow: ExitStack = field(default_factory=ExitStack)
    database: Postgres = field(init=False)
    s3: Proxy = field(init=False)
    settings: Settings = field(init=False)
    db: Database = field(init=False)
    small_disk: bool = False
    parts: dict[str, Part] = field(default_factory=dict)

    def open(self) -> None:
        for name in ("pg", "redis", "s3", "mlflow", "home"):
            (self.folder / name).mkdir()
        self.small_disk = self._mount(self.folder / "home")
        self.redis_port, self.mlflow_port, self.port = free_port(), free_port(), free_port()
        self.database = self.stack.enter_context(postgres_server(self.folder / "pg"))
        self.stack.callback(lambda: self.redis.close())
        self.stack.callback(lambda: self.mlflow.close())
        store = self.stack.enter_context(seaweedfs(self.folder / "s3", "drafts"))
        self.s3 = self.stack.enter_context(proxy(store.endpoint))
        self.start_redis()
        self.start_mlflow()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("UPDRAFT_")}
        self.env |= {f"UPDRAFT_{name}": value for name, value in self._settings().items()}
        with patch.dict(os.environ, self.env):
            self.settings = settings_of()
        migrate(self.settings)
        self.db = Database(self.settings.database_url)
        self.stack.callback(self.db.close)
        self._start_parts()

    def close(self) -> None:
        for part in self.parts.values():
            part.stop()
        self.stack.close()

    def start_redis(self) -> None:
        self.redis.enter_context(redis_server(self.folder / "redis", self.redis_port))

    def start_mlflow(self) -> None:
        home = self.folder / "mlflow"
        self.mlflow.enter_context(
            mlflow_server(home, f"file://{home / 'artifacts'}", {}, self.mlflow_port)
        )

    @property
    def workers(self) -> tuple[Part, Part]:
        return self.parts["worker-1"], self.parts["worker-2"]

    def submit(self, name: str | None = None) -> str:
        """A job of its own model name. Returns its id."""
        fields = {"target": "demo", "recipe": "quick", "model_name": name or new_id("m-")}
        spec = JobSpec.model_validate(fields)
        with self.db.write() as session:
            now = utcnow()
            return service.submit(session, spec, settings=self.settings, now=now).job.id

    def until(self, job_id: str, stage: str, steps: int = 0) -> str:
        """Wait until a stage runs and has done so many steps. Returns its worker's name."""

        def there() -> Stage | None:
            found = self.stage(job_id, stage)
            done = (found.progress or {}).get("done", 0)
            return found if found.status == "running" and done >= steps else None

        wait_until(there, PATIENCE_S, f"{stage} runs")
        return self.stage(job_id, stage).lease_owner or ""

    def stage(self, job_id: str, name: str) -> Stage:
        with self.db.read() as session:
            query = select(Stage).where(Stage.job_id == job_id, Stage.name == name)
            return session.scalars(query).one()

    def worker_of(self, owner: str) -> Part:
        """The worker of this name (`host:pid:…`)."""
        pid = int(owner.split(":")[1])
        return next(w for w in self.workers if w.process.pid == pid)

    def child_of(self, job_id: str, stage: str) -> psutil.Process:
        """The process of a stage."""
        words = {stage, str(job_id)}
        for worker in self.workers:
            for child in worker.process.children(recursive=True):
                line = child.cmdline()
                if words <= {Path(word).name for word in line}:
                    return child
        raise LookupError(f"{stage} of {job_id} has no process")

    def job(self, job_id: str) -> Job:
        with self.db.read() as session:
            return service.get_job(session, job_id)

    def ended(self, *job_ids: str) -> list[Job]:
        """The jobs, once all have ended."""
        wait_until(
            lambda: all(self.job(i).status.terminal for i in job_ids), PATIENCE_S, "the jobs end"
        )
        return [self.job(i) for i in job_ids]

    def events(self, job_id: str) -> list[JobEvent]:
        with self.db.read() as session:
            return service.list_events(session, job_id, limit=10_000)

    def drafts(self, job_id: str) -> list[Draft]:
        with self.db.read() as session:
            return list(session.scalars(select(Draft).where(Draft.job_id == job_id)))

    def versions(self, job: Job) -> list[Any]:
        """MLflow's versions of the job's model."""
        uri = self.settings.mlflow_tracking_uri
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        name = JobSpec.model_validate(job.spec).registry_name()
        return list(client.search_model_versions(f"name = '{name}'"))

    def check(self, job_id: str, failed: str | None = None) -> Job:
        """What must be true of a job whatever happened to it.

        Args:
            failed: the reason it must have failed for; None: it must have succeeded.
        """
        broken = self.broken(job_id)
        assert not broken, (broken, self._said(job_id))
        job = self.job(job_id)
        expected = "succeeded" if failed is None else "failed"
        assert job.status == expected, (job.status, job.error, self._said(job_id))
        assert failed is None or (job.error or {})["reason"] == failed, job.error
        return job

    def broken(self, job_id: str) -> list[Broken]:
        """Which invariants a job breaks, once it has ended and MLflow has been told."""
        if not _within(PATIENCE_S, lambda: self.job(job_id).status.terminal):
            return [Broken.STUCK]
        job, events = self.job(job_id), self.events(job_id)
        last_try = events[max(i for i, e in enumerate(events) if e.type == "job.queued") :]
        ends = [e.type for e in last_try if e.type in ("job.succeeded", "job.failed")]
        due = 1 if job.status == "succeeded" else 0
        holds = {
            Broken.GAP: [e.seq for e in events] == list(range(1, len(events) + 1)),
            Broken.ENDS: ends == [f"job.{job.status}"],
            Broken.DRAFTS: len(self.drafts(job_id)) == due,
            Broken.VERSIONS: _within(PATIENCE_S, lambda: self._mirrored(job, due)),
            Broken.LEFT: _within(20, lambda: not self.processes(job_id)),
        }
        return [one for one, well in holds.items() if not well]

    def processes(self, job_id: str) -> list[str]:
        """Command lines of this machine that name the job."""
        return processes(job_id)

    def _mirrored(self, job: Job, due: int) -> bool:
        """Whether MLflow has as many versions as are due, and the drafts know them."""
        told = all(draft.mlflow_version for draft in self.drafts(job.id))
        return told and len(self.versions(job)) == due

    def _said(self, job_id: str) -> str:
        return "\n".join(f"{e.type} {e.message}" for e in self.events(job_id)[-12:])

    def _mount(self, folder: Path) -> bool:
        """Put a small disk there, which takes root. Returns whether that was allowed."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            return False
        unmount = ["umount", "-l", str(folder)]
        self.stack.callback(lambda: subprocess.run(unmount, check=True))
        return True

    def _settings(self) -> dict[str, str]:
        fake = [sys.executable, "-I", "-S", str(FAKE), "alone,slowly@train"]
        return {
            **SHORT,
            "HOME": str(self.folder / "home"),
            "DATABASE_URL": self.database.url,
            "BROKER_URL": f"redis://127.0.0.1:{self.redis_port}/0",
            "STORE_URL": "s3://drafts/updraft",
            "S3_ENDPOINT_URL": self.s3.url,
            "S3_ACCESS_KEY": S3_KEY,
            "S3_SECRET_KEY": S3_SECRET,
            "MLFLOW_PORT": str(self.mlflow_port),
            "PORT": str(self.port),
            "STAGE_COMMAND": json.dumps(fake),
        }

    def _start_parts(self) -> None:
        python = sys.executable
        celery = [python, "-m", "celery", "-A", "workers.app", "worker", "--loglevel", "INFO"]
        celery += ["--without-gossip", "--without-mingle"]
        api = [python, "-m", "uvicorn", "--factory", "api.app:serve", "--host", "127.0.0.1"]
        api += ["--port", str(self.port), "--log-level", "warning"]
        self._add("api", api)
        self._add("relay", [python, "-m", "workers.relay"])
        for number in (1, 2):
            self._add(f"worker-{number}", [*celery, "-n", f"worker-{number}@%h"])
        wait_until(self.answers, 120, "the API answers")

    def _add(self, name: str, argv: list[str]) -> None:
        clock = {
            "PYTHONPATH": str(Path(__file__).parent / "shifted"),
            "SHIFT_FILE": str(self.folder / f"{name}.shift"),
            "UPDRAFT_RUNS_DIR": str(self.folder / "home" / f"runs-{name}"),
        }
        part = Part(name, argv, {**self.env, **clock}, self.folder / f"{name}.log")
        self.parts[name] = part
        part.start()

    def shift(self, name: str, seconds: float) -> None:
        """Set the wall clock of a part forward or back."""
        (self.folder / f"{name}.shift").write_text(str(seconds))

    def answers(self) -> bool:
        """Whether the API does."""
        try:
            url = f"http://127.0.0.1:{self.port}/livez"
            return httpx.get(url, timeout=2, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def settle(self) -> None:
        """Start what is down, wake what sleeps, set every clock right."""
        self.s3.mood = Mood.WELL
        for name, part in self.parts.items():
            self.shift(name, 0)
            if part.ended:
                part.start()
            part.wake()


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """Everything, for the time of the block, and no process of it afterwards."""
    one = Rig(folder)
    try:
        one.open()
        yield one
    finally:
        one.close()
    left = processes(str(folder))
    assert not left, left


def _within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether a condition comes true in time."""
    try:
        wait_until(condition, seconds, "it")
    except AssertionError:
        return False
    return True
