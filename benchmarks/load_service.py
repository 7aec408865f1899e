"""PostgreSQL and Redis from wheels, and the programs of the service on them, in full mode."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import httpx
import psutil
from pydantic import SecretStr

from api.cli.keys import USER_SCOPES
from jobs.db import Database, migrate
from jobs.keys import create_key
from jobs.settings import Settings
from tests.faults.part import Part
from tests.servers import free_port, postgres, redis_server, wait_until

SPEC = {"target": "demo", "recipe": "quick"}
RELAY = ("-m", "workers.relay")


@dataclass(frozen=True)
class Service:
    """A database and a broker, a key, and programs that can be started on them."""

    folder: Path
    settings: Settings
    db: Database
    env: dict[str, str]
    owner: str
    headers: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}/v1"

    def part(self, name: str, *argv: str) -> Part:
        part = Part(name, [sys.executable, *argv], self.env, self.folder / f"{name}.log")
        part.start()
        return part

    def api(self) -> Part:
        words = ("--host", "127.0.0.1", "--port", str(self.settings.port), "--no-access-log")
        part = self.part("api", "-m", "uvicorn", "--factory", "api.app:serve", *words)
        with self.client() as client:
            wait_until(lambda: _answers(client), 120, "the API answers")
        return part

    def worker(self, name: str, app: str = "workers.app") -> Part:
        words = ("worker", "--without-gossip", "--without-mingle", "-n", f"{name}@%h")
        return self.part(name, "-m", "celery", "-A", app, *words)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, trust_env=False, timeout=60)

    def spent(self, parts: list[Part]) -> dict[str, float]:
        """Seconds of CPU time that each part, the database server and this process have taken."""
        server = psutil.Process(int((self.folder / "pg" / "postmaster.pid").read_text().split()[0]))
        found = {part.name: _cpu(part.process) for part in parts}
        return {**found, "PostgreSQL": _cpu(server), "asking": time.process_time()}


def said(before: dict[str, float], after: dict[str, float], count: int) -> str:
    """CPU time between two calls of `Service.spent`, each by `count`, in milliseconds."""
    return ", ".join(
        f"{name} {1e3 * (after[name] - was) / count:.1f}" for name, was in before.items()
    )


@contextmanager
def service() -> Iterator[Service]:
    """Servers and tables, and a key; no program runs yet."""
    pepper = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("pg", "redis"):
            (folder / inner).mkdir()
        with postgres(folder / "pg") as database, redis_server(folder / "redis") as broker:
            chosen = {
                "MODE": "full", "HOME": str(folder / "home"), "DATABASE_URL": database,
                "BROKER_URL": broker, "STORE_URL": "s3://nowhere/updraft", "PORT": free_port(),
                "S3_ENDPOINT_URL": "http://127.0.0.1:9", "API_KEY_PEPPER": pepper,
                "MAX_ACTIVE_JOBS": 10**6, "REQUESTS_PER_SECOND": 10**4, "GC_SECONDS": 0,
                "MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "LEASE_SECONDS": 10,
                "HEARTBEAT_SECONDS": 2, "SWEEP_SECONDS": 2, "RESEND_SECONDS": 5,
                "RETRY_BASE_SECONDS": 0.5, "MAX_ATTEMPTS": 100,
            }  # fmt: skip
            env = {k: v for k, v in os.environ.items() if not k.startswith("UPDRAFT_")}
            env |= {f"UPDRAFT_{k}": str(v) for k, v in chosen.items()}
            with patch.dict(os.environ, env):
                settings = Settings()
            migrate(settings)
            db = Database(settings.database_url)
            with db.write() as session:
                key, token = create_key(
                    session, "load", USER_SCOPES, pepper=SecretStr(pepper), now=db.now()
                )
                owner = key.owner
            yield Service(folder, settings, db, env, owner, {"Authorization": f"Bearer {token}"})
            db.close()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/jobs").is_success
    except httpx.TransportError:
        return False


def _cpu(process: psutil.Process) -> float:
    times = (p.cpu_times() for p in (process, *process.children(recursive=True)))
    return sum(t.user + t.system for t in times)
