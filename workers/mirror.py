"""Copies what the database says to MLflow: live metrics by a cursor, drafts through the outbox.

Nothing is held in memory: while MLflow is away the cursor and the outbox record stay where they
are, and the copying goes on when it is back.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from sqlalchemy import select, update

from jobs.attachments import revisions, tags_of
from jobs.db import Database
from jobs.drafts import holder
from jobs.errors import Claimed, Invalid, RegistryRefused, RegistryUnavailable
from jobs.lineage import parent_tag
from jobs.mirror_claims import claimed
from jobs.models import Alias, Draft, Job, JobEvent, Outbox, OutboxKind, Stage
from jobs.outbox import relay
from jobs.registry import Point, Registry, flat
from jobs.spec import JobSpec
from jobs.store import ObjectStore
from jobs.store_directory import DirectoryStore
from workers.mirror_facts import dataset, description, figures, run_tags, version_tags

log = logging.getLogger(__name__)

EVENTS_AT_ONCE = 500
JOBS_AT_ONCE = 20
RUN_ENDS = {"job.succeeded": "FINISHED", "job.failed": "FAILED", "job.cancelled": "KILLED"}
REPORT_FILES = (
    "report.html", "report.md", "metrics.json", "loss.png", "loss.svg", "speedup.png",
    "speedup.svg", "certificate.json", "certificate.md", "benchmark.json", "parity.json",
    "serving.json",
)  # fmt: skip


class Mirror:
    """One round is `round()`; it raises `RegistryUnavailable` when MLflow is away.

    Where MLflow refuses the credentials, that is said once, and nothing more is asked of it: all
    that is not copied yet is copied by the next process that has others.
    """

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        registry: Registry,
        clock: Callable[[], datetime],
    ) -> None:
        self.db, self.store, self.registry, self.clock = db, store, registry, clock
        self.refused = False

    def round(self) -> int:
        """Copy what is new. Returns how many jobs and drafts had something."""
        if self.refused:
            return 0
        try:
            return self._copy_new()
        except RegistryRefused as e:
            self._stop(e)
            return 0

    def _copy_new(self) -> int:
        with self.db.read() as session:
            query = select(Job).where(Job.event_seq > Job.mirrored_seq).order_by(Job.id)
            jobs = list(session.scalars(query.limit(JOBS_AT_ONCE)))
        for job in jobs:
            self._copy_metrics(job)
        drafts = relay(self.db, OutboxKind.MIRROR, self._send, clock=self.clock)
        return len(jobs) + drafts

    def _send(self, record: Outbox) -> None:
        """The relay puts a record back whatever its fault is; that of all of them ends here."""
        if self.refused:
            raise RegistryUnavailable("MLflow refused the credentials for another record")
        try:
            self._copy_draft(record)
        except RegistryRefused as e:
            self._stop(e)
            raise

    def _stop(self, why: RegistryRefused) -> None:
        self.refused = True
        log.error("nothing is mirrored to MLflow any more: %s", why)

    def _copy_metrics(self, job: Job) -> None:
        with self.db.read() as session:
            query = (
                select(JobEvent)
                .where(JobEvent.job_id == job.id, JobEvent.seq > job.mirrored_seq)
                .order_by(JobEvent.seq)
                .limit(EVENTS_AT_ONCE)
            )
            events = list(session.scalars(query))
        points = [p for e in events if e.type == "metrics" for p in _points(e)]
        end = next((RUN_ENDS[e.type] for e in events if e.type in RUN_ENDS), None)
        try:
            if points:
                self.registry.log_metrics(self._run_of(job), points)
            if end is not None and job.mlflow_run_id is not None:
                self.registry.end_run(job.mlflow_run_id, end)
        except RegistryRefused:
            raise
        except Claimed:  # its run is being made; the cursor stays
            return
        except Invalid as e:  # MLflow will not take these; holding up every other job helps nobody
            log.error("metrics not mirrored: %s", e, extra={"job_id": job.id})
        with self.db.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(mirrored_seq=events[-1].seq))

    def _run_of(self, job: Job) -> str:
        """The MLflow run of a job, made at the first call by one relay."""
        if job.mlflow_run_id is None:
            with claimed(self.db, f"run {job.id}", self.clock):
                job.mlflow_run_id = self._ensure_run(job)
        return job.mlflow_run_id

    def _ensure_run(self, job: Job) -> str:
        with self.db.read() as session:
            made = session.scalar(select(Job.mlflow_run_id).where(Job.id == job.id))
        if made is not None:
            return made
        spec = JobSpec.model_validate(job.spec)
        params = flat(spec.resolved_recipe().model_dump(mode="json"))
        tags = {"recipe": job.recipe, **{f"label.{k}": str(v) for k, v in job.labels.items()}}
        tags |= parent_tag(spec)
        run_id = self.registry.ensure_run(
            job.id,
            job.target,
            params={**params, **flat(job.spec["prompts"], "prompts.")},
            tags=tags,
        )
        with self.db.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(mlflow_run_id=run_id))
        return run_id

    def _copy_draft(self, record: Outbox) -> None:
        """One draft as the database has it now. The drafts of a name are copied one after the
        other, or a relay that read before a promotion could write after it."""
        draft_id = record.payload["draft_id"]
        with self.db.read() as session:
            name = session.get_one(Draft, draft_id).name
        with claimed(self.db, f"model {name}", self.clock) as hold:
            self._copy(draft_id, hold)

    def _copy(self, draft_id: str, hold: Callable[[], None]) -> None:
        """Its run, files, version, tags and aliases."""
        with self.db.read() as session:
            draft = session.get_one(Draft, draft_id)
            job = session.get_one(Job, draft.job_id)
            attached = tags_of(session, job.id)
            champion = holder(session, draft, Alias.CHAMPION)
            previous = holder(session, draft, Alias.PREVIOUS)
            stages = session.scalars(select(Stage).where(Stage.job_id == job.id)).all()
            newest = session.scalars(
                select(Draft.id).where(Draft.name == draft.name).order_by(Draft.id.desc()).limit(1)
            ).one()
        summaries = {s.name: {**(s.summary or {}), "stage_digest": s.digest} for s in stages}
        result = job.result or {}
        run_id = self._run_of(job)
        self.registry.log_dataset(run_id, dataset(summaries))
        self.registry.set_tags(run_id, run_tags(draft, summaries, result))
        self.registry.log_metrics(run_id, [figures(draft, summaries)])
        self._copy_report(run_id, result.get("artifacts", {}))
        source = self._source(draft, run_id, result.get("artifacts", {}))
        hold()
        version = self.registry.ensure_version(
            draft.name,
            source=source,
            run_id=run_id,
            job_id=job.id,
            description=description(draft, summaries),
            tags={
                **version_tags(draft, summaries, result),
                **parent_tag(JobSpec.model_validate(job.spec)),
                **attached,
            },
        )
        chosen = champion is draft or (champion is None and draft.attached_at is not None)
        before = None if previous is None else previous.mlflow_version
        hold()
        self._move_aliases(draft, version, before, is_newest=newest == draft.id, chosen=chosen)
        self.registry.end_run(run_id, "FINISHED")
        with self.db.write() as session:
            session.execute(
                update(Draft)
                .where(Draft.id == draft.id)
                .values(mlflow_run_id=run_id, mlflow_version=version)
            )

    def _copy_report(self, run_id: str, artifacts: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in REPORT_FILES:
                if name in artifacts:
                    self.store.get_file(artifacts[name], Path(folder) / name)
            self.registry.log_files(run_id, Path(folder))

    def _move_aliases(
        self, draft: Draft, version: str, previous: str | None, *, is_newest: bool, chosen: bool
    ) -> None:
        """`candidate` is the newest draft of the name; with a champion comes `previous`, the one
        before it as the database says: MLflow may not have seen every one in between. The alias of
        a checkpoint goes to its champion, and where it has none to the draft that was attached."""
        if is_newest:
            self.registry.set_alias(draft.name, "candidate", version)
        if chosen:
            for revision in revisions(draft):
                self.registry.set_alias(draft.name, f"for-{revision}", version)
        if draft.alias != Alias.CHAMPION:
            return
        former = previous or self.registry.version_of(draft.name, "champion")
        if former is not None and former != version:
            self.registry.set_alias(draft.name, "previous", former)
        self.registry.set_alias(draft.name, "champion", version)  # the commit point: last

    def _source(self, draft: Draft, run_id: str, artifacts: dict[str, str]) -> str:
        """Where the version points: our bucket. A directory MLflow refuses to point to; then the
        draft is copied to the run's artifacts, so that `models:/name@champion` still loads it."""
        if not isinstance(self.store, DirectoryStore):
            return self.store.uri(f"{draft.uri}/draft")
        with tempfile.TemporaryDirectory() as folder:
            for name, key in artifacts.items():
                if name.startswith("draft/"):
                    self.store.get_file(key, Path(folder) / name.removeprefix("draft/"))
            self.registry.log_files(run_id, Path(folder), "draft")
        return f"{self.registry.artifact_uri(run_id)}/draft"


def _points(event: JobEvent) -> list[Point]:
    millis = int(event.created_at.timestamp() * 1000)
    return [
        Point(int(p["step"]), _millis(p.get("t")) or millis, p["metrics"])
        for p in event.data.get("points", [])
    ]


def _millis(text: str | None) -> int | None:
    return int(datetime.fromisoformat(text).timestamp() * 1000) if text else None
