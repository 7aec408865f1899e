"""What a job leaves behind: checkpoints, metrics, logs, artifacts, and links to them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Response

from api.auth import JobsRead
from api.files import download_url, store_response
from api.problems import responses
from api.query import no_others
from api.routes.jobs import JobId
from api.schemas import (
    CheckpointList,
    DownloadUrl,
    MetricList,
    MetricSeries,
    StoredFile,
    StoredFiles,
)
from api.state import State, StateDep
from api.views import checkpoint_view
from jobs import service
from jobs.errors import NotFound
from jobs.series import checkpoints, metric_series

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["outputs"], dependencies=[Depends(no_others)])

FileName = Annotated[str, Path(max_length=256, examples=["report.html"])]
BINARY: dict[str, Any] = {"content": {"application/octet-stream": {}}}


@router.get(
    "/checkpoints",
    operation_id="listCheckpoints",
    summary="Checkpoints, oldest first",
    responses=responses(404),
)
def list_checkpoints(job_id: JobId, state: StateDep, caller: JobsRead) -> CheckpointList:
    with state.db.read() as session:
        service.get_job(session, job_id, owner=caller.sees)
        found = checkpoints(session, job_id)
    return CheckpointList(data=[checkpoint_view(c) for c in found])


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Metrics over the steps",
    responses=responses(404),
)
def get_metrics(
    job_id: JobId,
    state: StateDep,
    caller: JobsRead,
    name: Annotated[
        str | None, Query(max_length=128, description="One metric, such as `train/loss`.")
    ] = None,
    points: Annotated[int, Query(ge=2, le=5000, description="At most, of each series.")] = 500,
) -> MetricList:
    with state.db.read() as session:
        service.get_job(session, job_id, owner=caller.sees)
        series, thinned = metric_series(session, job_id, name=name, most=points)
    return MetricList(
        data=[MetricSeries.model_validate(one) for one in series], down_sampled=thinned
    )


@router.get(
    "/artifacts",
    operation_id="listArtifacts",
    summary="Report, certificate, draft and the like",
    responses=responses(404),
)
def list_artifacts(job_id: JobId, state: StateDep, caller: JobsRead) -> StoredFiles:
    return _listed(_artifacts(state, job_id, caller.sees))


@router.get(
    "/artifacts/{name:path}",
    operation_id="getArtifact",
    summary="One of the job's artifacts",
    response_class=Response,
    responses={**responses(404), 200: {"description": "The artifact.", **BINARY}},
)
def get_artifact(job_id: JobId, name: FileName, state: StateDep, caller: JobsRead) -> Response:
    key = _one(_artifacts(state, job_id, caller.sees), name, f"job {job_id} has no artifact")
    return store_response(state.store, key, name)


@router.post(
    "/artifacts/{name:path}/download-url",
    operation_id="linkArtifact",
    summary="A link to an artifact that needs no key",
    description="Of the store itself, for 15 minutes at most; a path of this API where the store "
    "gives out no links.",
    responses=responses(404),
)
def link_artifact(job_id: JobId, name: FileName, state: StateDep, caller: JobsRead) -> DownloadUrl:
    key = _one(_artifacts(state, job_id, caller.sees), name, f"job {job_id} has no artifact")
    return download_url(state.store, key, f"/v1/jobs/{job_id}/artifacts/{quote(name)}")


@router.get(
    "/logs",
    operation_id="listLogs",
    summary="What the stages printed",
    description="A stage's files come when it ends; until then its lines are `log` events.",
    responses=responses(404),
)
def list_logs(job_id: JobId, state: StateDep, caller: JobsRead) -> StoredFiles:
    return _listed(_logs(state, job_id, caller.sees))


@router.get(
    "/logs/{name}",
    operation_id="getLog",
    summary="What one stage printed",
    response_class=Response,
    responses={**responses(404), 200: {"description": "The log.", **BINARY}},
)
def get_log(job_id: JobId, name: FileName, state: StateDep, caller: JobsRead) -> Response:
    key = _one(_logs(state, job_id, caller.sees), name, f"job {job_id} has no log")
    return store_response(state.store, key, name)


@router.post(
    "/logs/{name}/download-url",
    operation_id="linkLog",
    summary="A link to a log that needs no key",
    responses=responses(404),
)
def link_log(job_id: JobId, name: FileName, state: StateDep, caller: JobsRead) -> DownloadUrl:
    key = _one(_logs(state, job_id, caller.sees), name, f"job {job_id} has no log")
    return download_url(state.store, key, f"/v1/jobs/{job_id}/logs/{quote(name)}")


def _artifacts(state: State, job_id: str, owner: str | None) -> dict[str, str]:
    """Store keys by name."""
    with state.db.read() as session:
        job = service.get_job(session, job_id, owner=owner)
    found: dict[str, str] = (job.result or {}).get("artifacts", {})
    return found


def _logs(state: State, job_id: str, owner: str | None) -> dict[str, str]:
    with state.db.read() as session:
        job = service.get_job(session, job_id, owner=owner)
    prefix = f"jobs/{job.id}/logs/"
    return {key.removeprefix(prefix): key for key in state.store.list(prefix)}


def _listed(keys: dict[str, str]) -> StoredFiles:
    return StoredFiles(data=[StoredFile(name=name) for name in sorted(keys)])


def _one(keys: dict[str, str], name: str, refusal: str) -> str:
    if name not in keys:
        have = ", ".join(sorted(keys)) or "none yet"
        raise NotFound(f"{refusal} {name!r}; it has {have}")
    return keys[name]
