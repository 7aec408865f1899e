"""Jobs: submit, validate, list, read, cancel, and what they left behind."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query, Response

from api.auth import JobsRead, JobsWrite
from api.estimate import earlier, estimate_job, hub_of
from api.files import store_response
from api.problems import responses
from api.query import LabelsDep, PlanFor
from api.schemas import JobPage, JobView, Validation
from api.state import StateDep
from api.views import job_view
from eagle3.plan import hardware
from jobs import service
from jobs.errors import NotFound
from jobs.ids import utcnow
from jobs.lineage import check_sizes, find_parent, parent_of, with_parent
from jobs.spec import JobSpec, check_allowed
from jobs.states import JobStatus

router = APIRouter(prefix="/v1", tags=["jobs"])

POLL_S = 2
"""What an answer about an unfinished job suggests to wait before asking again."""

JobId = Annotated[str, Path(max_length=40, examples=["job_01kb8m2v9x3tq7c5"])]
SpecBody = Annotated[
    JobSpec,
    Body(
        openapi_examples={
            "demo": {
                "summary": "The demo target, in minutes",
                "value": {"target": "demo", "recipe": "quick"},
            },
            "hub": {
                "summary": "A hub model, with gates",
                "value": {
                    "target": "HuggingFaceTB/SmolLM2-135M-Instruct@main",
                    "recipe": "standard",
                    "overrides": {"train": {"epochs": 8}},
                    "gates": {"min_tau": 1.75, "lossless": True},
                    "labels": {"team": "serving"},
                },
            },
        }
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A repeat with the same key and body answers with the same job and "
        "`Idempotent-Replayed: true`; with another body, 422.",
        examples=["attach-acme/model-4f2a91"],
    ),
]


@router.post(
    "/jobs",
    status_code=202,
    operation_id="submitJob",
    summary="Submit a job",
    responses=responses(400, 429),
)
def submit_job(
    spec: SpecBody,
    state: StateDep,
    caller: JobsWrite,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    with state.db.write() as session:
        submission = service.submit(
            session,
            spec,
            settings=state.settings,
            now=utcnow(),
            owner=caller.owner,
            sees=caller.sees,
            idempotency_key=idempotency_key,
        )
        job = job_view(service.get_job(session, submission.job.id))
    response.headers["location"] = f"/v1/jobs/{job.id}"
    response.headers["retry-after"] = str(POLL_S)
    if submission.replayed:
        response.headers["idempotent-replayed"] = "true"
    return job


@router.post(
    "/jobs:validate",
    operation_id="validateJob",
    summary="Check a job without submitting it, and plan it",
    description="Nothing is stored, and no weights are fetched: sizes come from the target's "
    "`config.json`, or from an earlier job for it. What cannot be known is listed in `unknown`.",
    responses=responses(400),
)
def validate_job(
    spec: SpecBody,
    state: StateDep,
    caller: JobsWrite,
    where: Annotated[PlanFor, Query()],
) -> Validation:
    settings = state.settings
    check_allowed(spec, settings)
    with state.db.read() as session:
        parent = find_parent(session, spec, caller.sees) if parent_of(spec) else None
        known = earlier(session, spec, caller.sees)
    devices = hardware(where.gpu or "cpu", where.gpus)
    price = settings.price_per_hour if where.price is None else where.price
    found = estimate_job(spec, known, hub_of(settings), devices, price)
    if parent is not None:
        spec = with_parent(spec, parent)
        with state.db.read() as session:
            found.unknown += check_sizes(session, parent, found.shape)
    if where.gpu is None and settings.mode == "full":
        found.unknown.append(
            f"the workers' hardware: hours are those of {devices}; name it with ?gpu= and ?gpus="
        )
    return Validation(
        plan=found.plan,
        unknown=found.unknown,
        target=str(spec.target_ref),
        recipe=spec.resolved_recipe().model_dump(mode="json"),
        stages=list(service.ALL_STAGES),
        model_name=spec.registry_name(),
    )


@router.get(
    "/jobs",
    operation_id="listJobs",
    summary="List jobs, newest first",
    responses=responses(),
)
def list_jobs(
    state: StateDep,
    caller: JobsRead,
    labels: LabelsDep,
    status: Annotated[JobStatus | None, Query(description="Only jobs with this status.")] = None,
    base_model: Annotated[str | None, Query(description="Only jobs for this target.")] = None,
    after: Annotated[
        str | None, Query(max_length=40, description="`next` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> JobPage:
    with state.db.read() as session:
        page = service.list_jobs(
            session,
            owner=caller.sees,
            status=status,
            target=base_model,
            labels=labels,
            after=after,
            limit=limit,
        )
        data = [job_view(job) for job in page.items]
    return JobPage(data=data, has_more=page.next_after is not None, next=page.next_after)


@router.get(
    "/jobs/{job_id}",
    operation_id="getJob",
    summary="A job with its stages and their progress",
    response_model=JobView,
    responses={**responses(404), 304: {"description": "Unchanged since `If-None-Match`."}},
)
def get_job(
    job_id: JobId,
    state: StateDep,
    caller: JobsRead,
    if_none_match: Annotated[str | None, Header(description="An ETag seen before.")] = None,
) -> Response:
    with state.db.read() as session:
        job = job_view(service.get_job(session, job_id, owner=caller.sees))
    body = job.model_dump_json().encode()
    # Progress moves without a new version, so the tag is of the content.
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if if_none_match and etag in (tag.strip() for tag in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    if not JobStatus(job.status).terminal:
        headers["retry-after"] = str(POLL_S)
    return Response(body, media_type="application/json", headers=headers)


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    operation_id="cancelJob",
    summary="Ask a job to stop",
    description="Asking twice is the same as asking once. A stage in progress gets time to end.",
    responses={**responses(404, 409), 200: {"model": JobView, "description": "Cancelled."}},
)
def cancel_job(job_id: JobId, state: StateDep, caller: JobsWrite, response: Response) -> JobView:
    with state.db.write() as session:
        service.request_cancel(session, job_id, now=utcnow(), owner=caller.sees)
        view = job_view(service.get_job(session, job_id))
    if view.status == JobStatus.CANCELLED:
        response.status_code = 200
    return view


@router.get(
    "/jobs/{job_id}/artifacts/{name:path}",
    operation_id="getArtifact",
    summary="One of the job's `artifacts`: report.html, certificate.json, …",
    response_class=Response,
    responses={
        **responses(404),
        200: {"description": "The artifact.", "content": {"application/octet-stream": {}}},
    },
)
def get_artifact(
    job_id: JobId,
    name: Annotated[str, Path(max_length=256, examples=["report.html"])],
    state: StateDep,
    caller: JobsRead,
) -> Response:
    with state.db.read() as session:
        job = service.get_job(session, job_id, owner=caller.sees)
        known: dict[str, Any] = (job.result or {}).get("artifacts", {})
    if name not in known:
        have = ", ".join(sorted(known)) or "none yet; they come with the register stage"
        raise NotFound(f"job {job_id} has no artifact {name!r}; it has {have}")
    return store_response(state.store, known[name], name)
