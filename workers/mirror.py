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
from typing import Any

from sqlalchemy import select, update

from jobs.db import Database
from jobs.errors import Invalid
from jobs.lineage import parent_tag
from jobs.models import Alias, Draft, Job, JobEvent, Outbox, OutboxKind, Stage
from jobs.outbox import relay
from jobs.registry import Point, Registry, flat
from jobs.spec import JobSpec
from jobs.store import ObjectStore
from jobs.store_directory import DirectoryStore

log = logging.getLogger(__name__)

EVENTS_AT_ONCE = 500
JOBS_AT_ONCE = 20
RUN_ENDS = {"job.succeeded": "FINISHED", "job.failed": "FAILED", "job.cancelled": "KILLED"}
REPORT_FILES = (
    "report.html", "report.md", "metrics.json", "loss.png", "loss.svg", "speedup.png",
    "speedup.svg", "certificate.json", "benchmark.json", "serving.json",
)  # fmt: skip


class Mirror:
    """One round is `round()`; it raises `RegistryUnavailable` when MLflow is away."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        registry: Registry,
        clock: Callable[[], datetime],
    ) -> None:
        self.db, self.store, self.registry, self.clock = db, store, registry, clock

    def round(self) -> int:
        """Copy what is new. Returns how many jobs and drafts had something."""
        with self.db.read() as session:
            query = select(Job).where(Job.event_seq > Job.mirrored_seq).order_by(Job.id)
            jobs = list(session.scalars(query.limit(JOBS_AT_ONCE)))
        for job in jobs:
            self._copy_metrics(job)
        drafts = relay(self.db, OutboxKind.MIRROR, self._copy_draft, clock=self.clock)
        return len(jobs) + drafts

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
        except Invalid as e:  # MLflow will not take these; holding up every other job helps nobody
            log.error("metrics not mirrored: %s", e, extra={"job_id": job.id})
        with self.db.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(mirrored_seq=events[-1].seq))

    def _run_of(self, job: Job) -> str:
        """The MLflow run of a job, made at the first call."""
        if job.mlflow_run_id is None:
            spec = JobSpec.model_validate(job.spec)
            params = flat(spec.resolved_recipe().model_dump(mode="json"))
            tags = {"recipe": job.recipe, **{f"label.{k}": str(v) for k, v in job.labels.items()}}
            tags |= parent_tag(spec)
            job.mlflow_run_id = self.registry.ensure_run(
                job.id,
                job.target,
                params={**params, **flat(job.spec["prompts"], "prompts.")},
                tags=tags,
            )
            with self.db.write() as session:
                session.execute(
                    update(Job).where(Job.id == job.id).values(mlflow_run_id=job.mlflow_run_id)
                )
        return job.mlflow_run_id

    def _copy_draft(self, record: Outbox) -> None:
        """Run, files, version, tags and aliases of one draft, as the database has them now."""
        with self.db.read() as session:
            draft = session.get_one(Draft, record.payload["draft_id"])
            job = session.get_one(Job, draft.job_id)
            stages = session.scalars(select(Stage).where(Stage.job_id == job.id)).all()
            newest = session.scalars(
                select(Draft.id).where(Draft.name == draft.name).order_by(Draft.id.desc()).limit(1)
            ).one()
        summaries = {s.name: {**(s.summary or {}), "stage_digest": s.digest} for s in stages}
        result = job.result or {}
        run_id = self._run_of(job)
        self.registry.set_tags(run_id, _run_tags(draft, summaries, result))
        self.registry.log_metrics(run_id, [_figures(draft, summaries)])
        self._copy_report(run_id, result.get("artifacts", {}))
        version = self.registry.ensure_version(
            draft.name,
            source=self._source(draft, run_id, result.get("artifacts", {})),
            run_id=run_id,
            job_id=job.id,
            tags={
                **_version_tags(draft, summaries, result),
                **parent_tag(JobSpec.model_validate(job.spec)),
            },
        )
        self._move_aliases(draft, version, is_newest=newest == draft.id)
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

    def _move_aliases(self, draft: Draft, version: str, *, is_newest: bool) -> None:
        """`candidate` is the newest draft of the name; a champion leaves `previous` behind."""
        if is_newest:
            self.registry.set_alias(draft.name, "candidate", version)
        if draft.alias != Alias.CHAMPION:
            return
        former = self.registry.version_of(draft.name, "champion")
        if former is not None and former != version:
            self.registry.set_alias(draft.name, "previous", former)
        self.registry.set_alias(draft.name, f"for-{draft.weights_sha256[:12]}", version)
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


def _figures(draft: Draft, summaries: dict[str, dict[str, Any]]) -> Point:
    """The final figures as metrics of the run, at the last training step."""
    named = {
        "eval/tau": draft.metrics.get("tau"),
        "eval/speedup": draft.metrics.get("speedup"),
        "eval/best_acceptance_length": draft.metrics.get("acceptance_length"),
        "eval/plain_tokens_per_s": draft.metrics.get("plain_tokens_per_s"),
        "eval/draft_tokens_per_s": draft.metrics.get("draft_tokens_per_s"),
    }
    by_position = draft.metrics.get("acceptance_by_position") or []
    named.update({f"eval/acceptance_{i}": x for i, x in enumerate(by_position)})
    values = {k: float(v) for k, v in named.items() if isinstance(v, int | float)}
    step = int(summaries.get("train", {}).get("steps") or 0)
    return Point(step, int(draft.created_at.timestamp() * 1000), values)


def _run_tags(
    draft: Draft, summaries: dict[str, dict[str, Any]], result: dict[str, Any]
) -> dict[str, str]:
    system = flat(result.get("system", {}), "system.")
    facts = {
        "draft_id": draft.id,
        "base_model_revision": draft.target_resolved.partition("@")[2],
        "dataset_digest": summaries.get("prepare", {}).get("stage_digest"),
        "mlflow.note.content": f"Draft {draft.id} for {draft.target_resolved}",
        **system,
    }
    return {k: str(v) for k, v in facts.items() if v is not None}


def _version_tags(
    draft: Draft, summaries: dict[str, dict[str, Any]], result: dict[str, Any]
) -> dict[str, str]:
    """What binds a draft to its target, and what a deployment looks at."""
    resolve, export = summaries.get("resolve", {}), summaries.get("export", {})
    tags = {
        "draft_id": draft.id,
        "base_model": draft.target,
        "base_model_resolved": draft.target_resolved,
        "base_model_revision": draft.target_resolved.partition("@")[2],
        "base_config_sha256": resolve.get("config_sha256"),
        "weights_sha256": draft.weights_sha256,
        "tokenizer_sha256": draft.tokenizer_sha256,
        "template_sha256": draft.template_sha256,
        "aux_layers": ",".join(str(x) for x in draft.capture_layers),
        "aux_layers_convention": export.get("convention"),
        "draft_vocab_size": export.get("draft_vocab_size"),
        "draft_vocab_sha256": export.get("draft_vocab_sha256"),
        "manifest_sha256": draft.manifest_sha256,
        "acceptance_length": draft.metrics.get("acceptance_length"),
        "tau": draft.metrics.get("tau"),
        "speedup": draft.metrics.get("speedup"),
        "lossless": str(draft.metrics.get("lossless")).lower(),
        "serving_formats": "eagle3",
        "gate": "passed" if result.get("gates", {}).get("passed") else "not passed",
    }
    return {k: str(v) for k, v in tags.items() if v is not None}
