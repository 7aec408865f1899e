"""Time in which a job waits for the service: from its submission to its first stage, and from one
stage's end to the next one's start. Jobs of no-op stages, one after the other, through a real relay
and a real worker.

    python -m benchmarks.dead_time [--jobs 30] [--servers]

`--servers`: on PostgreSQL and Redis (from wheels) in place of SQLite and the broker of files. Two
figures for each gap: by the database (the stage's row says `succeeded`, the next one's `running`),
and between processes (the child has ended, the next child has begun), which has uploads and the
start of an interpreter in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from jobs import service
from jobs.db import Database, migrate
from jobs.ids import utcnow
from jobs.models import Job, JobEvent
from jobs.settings import Settings
from jobs.spec import JobSpec
from tests.servers import postgres, redis_server
from tests.settings import settings_of

ROOT = Path(__file__).resolve().parents[1]
WORKER = ("-m", "celery", "-A", "workers.app", "worker", "--without-gossip", "--without-mingle")
RELAY = ("-m", "workers.relay")
TIMEOUT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--servers", action="store_true")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env = {"UPDRAFT_HOME": str(home), "UPDRAFT_MLFLOW_PORT": "1", "UPDRAFT_GC_SECONDS": "0"}
        noop = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "noop_stage.py")]
        env["UPDRAFT_STAGE_COMMAND"] = json.dumps(noop)
        if args.servers:
            for name in ("pg", "redis"):
                (home / name).mkdir()
            env["UPDRAFT_DATABASE_URL"] = stack.enter_context(postgres(home / "pg"))
            env["UPDRAFT_BROKER_URL"] = stack.enter_context(redis_server(home / "redis"))
        os.environ.update(env)
        settings = settings_of()
        migrate(settings)
        stack.enter_context(_processes(home / "log"))
        db = Database(settings.database_url)
        stack.callback(db.close)
        _one_job(db, settings)  # warms up: imports, first connections
        found = [_one_job(db, settings) for _ in range(args.jobs)]
    print("PostgreSQL and Redis" if args.servers else "SQLite and files")  # noqa: T201
    for name in ("submit to first stage", "between stages, database", "between stages, processes"):
        _show(name, [gap for one in found for gap in one[name]])


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


@contextlib.contextmanager
def _processes(log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        started = [
            subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdout=out, stderr=out)
            for argv in (RELAY, WORKER)
        ]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


def _one_job(db: Database, settings: Settings) -> dict[str, list[float]]:
    """Submit a job, wait for its end. Returns its gaps in seconds."""
    with db.write() as session:
        spec = JobSpec(target="demo", recipe="quick")
        submitted = utcnow()
        job_id = service.submit(session, spec, settings=settings, now=submitted).job.id
    job = _ended(db, job_id)
    if job.status != "succeeded":
        raise RuntimeError(f"{job_id} {job.status}: {job.error}")
    with db.read() as session:
        events = service.list_events(session, job_id, limit=1000)
    starts = [e for e in events if e.type == "stage.running"]
    ends = [e for e in events if e.type == "stage.succeeded"]
    return {
        "submit to first stage": [(starts[0].created_at - submitted).total_seconds()],
        "between stages, database": _gaps(starts, ends),
        "between stages, processes": _process_gaps(settings.runs_dir / job_id / "times"),
    }


def _ended(db: Database, job_id: str) -> Job:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with db.read() as session:
            job = service.get_job(session, job_id)
        if job.status.terminal:
            return job
        time.sleep(0.2)
    raise TimeoutError(f"{job_id} has not ended within {TIMEOUT_S:g} s")


def _gaps(starts: list[JobEvent], ends: list[JobEvent]) -> list[float]:
    pairs = zip(ends[:-1], starts[1:], strict=True)
    return [(start.created_at - end.created_at).total_seconds() for end, start in pairs]


def _process_gaps(times: Path) -> list[float]:
    rows = [line.split()[1:] for line in times.read_text().splitlines()]
    return [float(b[0]) - float(a[1]) for a, b in pairwise(rows)]


def _show(name: str, seconds: list[float]) -> None:
    cuts = (
        statistics.quantiles(seconds, n=20, method="inclusive")
        if len(seconds) > 1
        else seconds * 19
    )
    figures = f"median {statistics.median(seconds):.3f}  p95 {cuts[18]:.3f}"
    print(f"{name:28} n={len(seconds):4}  {figures}  max {max(seconds):.3f} s")  # noqa: T201


if __name__ == "__main__":
    main()
