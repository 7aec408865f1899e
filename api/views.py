"""Rows of the database as the API's answers."""

from __future__ import annotations

from typing import Any

from api.schemas import DraftView, EventView, JobError, JobView, StageProgress, StageView
from jobs.models import Draft, Job, JobEvent, Stage
from jobs.store import ObjectStore


def job_view(job: Job) -> JobView:
    """A job whose stages are loaded."""
    result = dict(job.result) if job.result else None
    artifacts = sorted(result.pop("artifacts", {})) if result else []
    return JobView(
        id=job.id,
        status=job.status.value,
        version=job.version,
        target=job.target,
        recipe=job.recipe,
        labels=job.labels,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        cancel_requested_at=job.cancel_requested_at,
        stages=[_stage_view(stage) for stage in job.stages],
        error=JobError(**_given(job.error)) if job.error else None,
        result=result,
        artifacts=artifacts,
        spec=job.spec,
    )


def event_view(event: JobEvent) -> EventView:
    return EventView(
        seq=event.seq,
        type=event.type,
        level=event.level,
        message=event.message,
        data=event.data,
        created_at=event.created_at,
    )


def draft_view(draft: Draft, store: ObjectStore) -> DraftView:
    return DraftView(
        id=draft.id,
        job_id=draft.job_id,
        name=draft.name,
        alias=draft.alias.value,
        target=draft.target,
        target_resolved=draft.target_resolved,
        weights_sha256=draft.weights_sha256,
        tokenizer_sha256=draft.tokenizer_sha256,
        template_sha256=draft.template_sha256,
        capture_layers=draft.capture_layers,
        metrics=draft.metrics,
        uri=store.uri(draft.uri),
        manifest_sha256=draft.manifest_sha256,
        mlflow_run_id=draft.mlflow_run_id,
        mlflow_version=draft.mlflow_version,
        created_at=draft.created_at,
    )


def _stage_view(stage: Stage) -> StageView:
    return StageView(
        name=stage.name,
        position=stage.position,
        status=stage.status.value,
        attempt=stage.attempt,
        started_at=stage.started_at,
        finished_at=stage.finished_at,
        seconds=stage.seconds,
        progress=StageProgress(**_given(stage.progress)) if stage.progress else None,
        summary=stage.summary,
        digest=stage.digest,
        error=stage.error,
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
