"""Jobs of one stage that does nothing, through workers of which one is killed now and then."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select, text

from benchmarks.load_figures import say, table
from benchmarks.load_service import RELAY, SPEC, Service
from jobs.ids import new_id
from jobs.models import Job, JobEvent, Outbox, OutboxKind, Stage
from jobs.spec import JobSpec
from jobs.states import JobStatus, StageStatus

ENDS = ("job.succeeded", "job.failed", "job.cancelled")


def noop(one: Service, count: int, workers: int, every: float, seed: int = 0) -> bool:
    """Whether each job ended once, and well."""
    dice = random.Random(seed)  # noqa: S311
    _queue(one, count, hints=10 * workers)
    relay = one.part("relay", *RELAY)
    running = [one.worker(f"w{n}", "benchmarks.noop_worker") for n in range(workers)]
    parts, started, kills = [relay, *running], time.monotonic(), 0
    due = started + every
    while (left := _left(one)) > 0:
        time.sleep(2)
        if time.monotonic() < due:
            continue
        running[dice.randrange(workers)].restart()
        kills += 1
        due = time.monotonic() + every * dice.uniform(0.5, 1.5)
        sys.stderr.write(f"{left} left, {kills} kills\n")
    seconds = time.monotonic() - started
    for part in reversed(parts):
        part.stop()
    with one.db.read() as session:
        ends = select(JobEvent.job_id, func.count()).where(JobEvent.type.in_(ENDS))
        found = Counter(n for _, n in session.execute(ends.group_by(JobEvent.job_id)))
        well = select(func.count()).where(Job.status == JobStatus.SUCCEEDED)
        succeeded = session.scalar(well) or 0
        again = select(func.count()).where(JobEvent.type == "stage.retry")
        retried = session.scalar(again) or 0
    say(
        table(
            ["jobs", "workers", "killed", "succeeded", "ended once", "more often", "tried again",
             "seconds", "jobs/s"],
            [[f"{count:,}", str(workers), str(kills), f"{succeeded:,}", f"{found[1]:,}",
              str(sum(n for times, n in found.items() if times > 1)), str(retried),
              f"{seconds:.0f}", f"{count / seconds:.0f}"]],
        )
    )  # fmt: skip
    return found == Counter({1: count}) and succeeded == count


def _queue(one: Service, count: int, hints: int) -> None:
    now = one.db.now()
    spec = JobSpec.model_validate(SPEC).model_dump(mode="json")
    ids = [new_id("job_", now) for _ in range(count)]
    with one.db.write() as session:
        session.execute(insert(Job), [_job(job, spec, now) for job in ids])
        session.execute(insert(Stage), [_stage(job, now) for job in ids])
        session.execute(insert(Outbox), [_hint(job, now) for job in ids[:hints]])
        session.execute(text("ANALYZE"))  # as autovacuum does in time


def _job(job_id: str, spec: dict[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "id": job_id, "status": JobStatus.QUEUED, "version": 1, "owner": "local", "priority": 0,
        "target": "demo", "recipe": "quick", "spec": spec, "labels": {}, "created_at": now,
        "event_seq": 0, "mirrored_seq": 0,
    }  # fmt: skip


def _stage(job_id: str, now: datetime) -> dict[str, Any]:
    return {
        "job_id": job_id, "name": "register", "position": 0, "status": StageStatus.QUEUED,
        "needs": "any", "attempt": 0, "queued_at": now, "gpus": 0, "leased_seconds": 0.0,
    }  # fmt: skip


def _hint(job_id: str, now: datetime) -> dict[str, Any]:
    return {
        "kind": OutboxKind.HINT, "job_id": job_id, "created_at": now, "available_at": now,
        "payload": {"stage": "register", "needs": "any"}, "attempts": 0,
    }  # fmt: skip


def _left(one: Service) -> int:
    with one.db.read() as session:
        query = select(func.count()).where(Job.status.in_((JobStatus.QUEUED, JobStatus.RUNNING)))
        return session.scalar(query) or 0
