"""A database, a clock, and what people and workers do, for tests with no process and no waiting."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from jobs import control, endings, leases, outputs, service
from jobs.db import Database
from jobs.endings import Failure
from jobs.errors import FailureReason
from jobs.leases import Lease
from jobs.models import Job, Outbox, Stage, Worker
from jobs.needs import parse_gpus
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.states import JobStatus
from jobs.sweeper import Swept, sweep
from tests.jobs.conftest import Clock

OOM = Failure(FailureReason.OUT_OF_MEMORY, "killed")


class World:
    """A database, a clock, and the calls a worker makes."""

    def __init__(self, db: Database, settings: Settings, clock: Clock) -> None:
        self.db, self.settings, self.clock = db, settings, clock

    def submit(self, owner: str = "local", **spec: Any) -> str:
        made = JobSpec.model_validate({"target": "demo", "recipe": "quick", **spec})
        with self.db.write() as s:
            now = self.clock.forward(0.01)
            return service.submit(s, made, settings=self.settings, now=now, owner=owner).job.id

    def claim(self, owner: str = "one", has: str = "cpu") -> Lease | None:
        with self.db.write() as s:
            return leases.claim(
                s, owner, settings=self.settings, now=self.clock.now, has=parse_gpus(has)
            )

    def leased(self, owner: str = "one", has: str = "cpu") -> Lease:
        lease = self.claim(owner, has)
        assert lease is not None
        return lease

    def until_stage(self, name: str, has: str = "cpu") -> Lease:
        """Finish stages until this one is leased."""
        while (lease := self.leased(has=has)).stage != name:
            self.finish(lease)
        return lease

    def works(self, name: str, has: str) -> None:
        """A worker of that name gives a sign of life."""
        with self.db.write() as s:
            s.merge(Worker(id=name, started_at=self.clock.now, seen_at=self.clock.now, has=has))

    def beat(self, lease: Lease) -> JobStatus:
        with self.db.write() as s:
            return leases.heartbeat(s, lease, settings=self.settings, now=self.clock.now)

    def finish(self, lease: Lease) -> None:
        with self.db.write() as s:
            endings.finish(s, lease, now=self.clock.now, summary={}, uri=f"stages/{lease.stage}")
            if lease.stage != "register":
                outputs.hold(
                    s,
                    f"stages/{lease.stage}",
                    stage=lease.stage,
                    digest="d",
                    owner=lease.account,
                    size=1,
                    now=self.clock.now,
                )

    def fail(self, lease: Lease, failure: Failure = OOM) -> bool:
        with self.db.write() as s:
            return endings.fail(s, lease, failure, settings=self.settings, now=self.clock.now)

    def cancel(self, job_id: str) -> Job:
        with self.db.write() as s:
            return service.request_cancel(s, job_id, now=self.clock.now)

    def release(self, lease: Lease) -> None:
        with self.db.write() as s:
            endings.release(s, lease, now=self.clock.now, message="stopped")

    def pause(self, job_id: str) -> Job:
        with self.db.write() as s:
            return control.pause(s, job_id, now=self.clock.now)

    def resume(self, job_id: str) -> Job:
        with self.db.write() as s:
            return control.resume(s, job_id, now=self.clock.now)

    def retry(self, job_id: str) -> Job:
        with self.db.write() as s:
            return control.retry(s, job_id, settings=self.settings, now=self.clock.now)

    def prioritise(self, job_id: str, priority: int) -> Job:
        with self.db.write() as s:
            return control.prioritise(
                s, job_id, priority, settings=self.settings, now=self.clock.now
            )

    def sweep(self) -> Swept:
        return sweep(self.db, self.settings, self.clock.now)

    def hints(self, job_id: str) -> list[dict[str, Any]]:
        with self.db.read() as s:
            query = select(Outbox.payload).where(Outbox.job_id == job_id).order_by(Outbox.id)
            return list(s.scalars(query))

    def job(self, job_id: str) -> Job:
        with self.db.read() as s:
            return service.get_job(s, job_id)

    def stage(self, job_id: str, name: str = "resolve") -> Stage:
        return next(s for s in self.job(job_id).stages if s.name == name)

    def events(self, job_id: str) -> list[str]:
        with self.db.read() as s:
            return [e.type for e in service.list_events(s, job_id, limit=1000)]
