"""Jobs: submit, validate, list, read, cancel, and what they left behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from api.auth import Caller, JobsRead, JobsWrite
from api.conditional import UNCHANGED, IfMatch, IfNoneMatch, check_match, tagged
from api.cursor import After, Cursors, Limit
from api.estimate import earlier, estimate_job, hub_of
from api.problems import responses
from api.query import LabelsDep, PlanFor
from api.schemas import JobPage, JobView, PriorityBody, Validation
from api.state import State, StateDep
from api.submissions import POLL_S, IdempotencyKey, answer, check_key
from api.views import job_view, job_views
from eagle3.plan import hardware
from jobs import control, service
from jobs.evaluations import with_drafts
from jobs.events import lock_job
from jobs.lineage import check_sizes, find_parent, parent_of, with_parent
from jobs.models import Job
from jobs.quotas import lock_owner
from jobs.spec import JobSpec, check_allowed
from jobs.states import JobStatus

router = APIRouter(prefix="/v1", tags=["jobs"])

JobId = Annotated[str, Path(max_length=40, examples=["job_01kb8m2v9x3tq7c5"])]
CHANGES = responses(404, 409, 412)
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
    check_key(caller, idempotency_key)
    with state.db.write() as session:
        submission = service.submit(
            session,
            spec,
            settings=state.settings,
            now=state.db.now(),
            owner=caller.owner,
            sees=caller.sees,
            idempotency_key=idempotency_key,
        )
    job = job_view(submission.job)
    answer(response, submission, f"/v1/jobs/{job.id}")
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
        if spec.evaluate is not None:
            spec = with_drafts(session, spec, caller.sees)
    devices = hardware(where.gpu or "cpu", where.gpus)
    price = settings.price_per_hour if where.price is None else where.price
    found = estimate_job(spec, known, hub_of(settings), devices, price)
    if parent is not None:
        spec = with_parent(spec, parent)
        with state.db.read() as session:
            found.unknown += check_sizes(session, parent, found.shape)
    if found.plan is not None and where.gpu is None and settings.mode == "full":
        found.unknown.append(
            f"the workers' hardware: hours are those of {devices}; name it with ?gpu= and ?gpus="
        )
    return Validation(
        plan=found.plan,
        unknown=found.unknown,
        target=str(spec.target_ref),
        recipe=spec.resolved_recipe().model_dump(mode="json"),
        stages=list(service.stages_of(spec)),
        model_name=spec.registry_name(),
    )


@router.get(
    "/jobs",
    operation_id="listJobs",
    summary="List jobs, newest first",
    description="Labels are filters, too: `label.NAME=value`, as often as there are labels.",
    responses=responses(),
)
def list_jobs(
    state: StateDep,
    caller: JobsRead,
    labels: LabelsDep,
    status: Annotated[JobStatus | None, Query(description="Only jobs with this status.")] = None,
    base_model: Annotated[
        str | None, Query(max_length=1024, description="Only jobs for this target.")
    ] = None,
    after: After = None,
    limit: Limit = 20,
) -> JobPage:
    cursors = Cursors(state.secret, "jobs", caller.sees, status, base_model, labels)
    with state.db.read() as session:
        page = service.list_jobs(
            session,
            owner=caller.sees,
            status=status,
            target=base_model,
            labels=labels,
            after=cursors.read(after),
            limit=limit,
        )
        data = job_views(session, page.items)
    following = cursors.make(page.next_after)
    return JobPage(data=data, has_more=following is not None, next=following)


@router.get(
    "/jobs/{job_id}",
    operation_id="getJob",
    summary="A job with its stages and their progress",
    response_model=JobView,
    responses={**responses(404), **UNCHANGED},
)
def get_job(
    job_id: JobId, state: StateDep, caller: JobsRead, if_none_match: IfNoneMatch = None
) -> Response:
    with state.db.read() as session:
        job = job_view(service.get_job(session, job_id, owner=caller.sees))
    ended = JobStatus(job.status).terminal
    return tagged(job, if_none_match, **({} if ended else {"retry-after": str(POLL_S)}))


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    operation_id="cancelJob",
    summary="Ask a job to stop",
    description="Asking twice is the same as asking once. A stage in progress gets time to end.",
    responses={**CHANGES, 200: {"model": JobView, "description": "Cancelled."}},
)
def cancel_job(
    job_id: JobId,
    state: StateDep,
    caller: JobsWrite,
    response: Response,
    if_match: IfMatch = None,
) -> JobView:
    view = _change(state, job_id, caller, if_match, service.request_cancel)
    if view.status == JobStatus.CANCELLED:
        response.status_code = 200
    return view


@router.post(
    "/jobs/{job_id}/retry",
    status_code=202,
    operation_id="retryJob",
    summary="Run a failed or cancelled job again, from its last good stage",
    responses=CHANGES,
)
def retry_job(
    job_id: JobId, state: StateDep, caller: JobsWrite, if_match: IfMatch = None
) -> JobView:
    retry = partial(control.retry, settings=state.settings)
    return _change(state, job_id, caller, if_match, retry)


@router.post(
    "/jobs/{job_id}/pause",
    status_code=202,
    operation_id="pauseJob",
    summary="Keep a job from going on",
    description="A stage that runs saves its work first. Asking twice is the same as asking once.",
    responses=CHANGES,
)
def pause_job(
    job_id: JobId, state: StateDep, caller: JobsWrite, if_match: IfMatch = None
) -> JobView:
    return _change(state, job_id, caller, if_match, control.pause)


@router.post(
    "/jobs/{job_id}/resume",
    status_code=202,
    operation_id="resumeJob",
    summary="Let a paused job go on from where it was",
    responses=CHANGES,
)
def resume_job(
    job_id: JobId, state: StateDep, caller: JobsWrite, if_match: IfMatch = None
) -> JobView:
    return _change(state, job_id, caller, if_match, control.resume)


@router.post(
    "/jobs/{job_id}/priority",
    operation_id="prioritiseJob",
    summary="Change which of the waiting jobs goes first",
    responses={**CHANGES, **responses(400)},
)
def prioritise_job(
    job_id: JobId,
    body: PriorityBody,
    state: StateDep,
    caller: JobsWrite,
    if_match: IfMatch = None,
) -> JobView:
    change = partial(control.prioritise, priority=body.priority, settings=state.settings)
    return _change(state, job_id, caller, if_match, change)


def _change(
    state: State, job_id: str, caller: Caller, if_match: str | None, change: Callable[..., Job]
) -> JobView:
    """Do something to a job, if it is still the one that the caller has seen."""
    with state.db.write() as session:
        if if_match is not None:
            lock_owner(session, service.get_job(session, job_id, owner=caller.sees).owner)
            lock_job(session, job_id)
            check_match(if_match, job_view(service.get_job(session, job_id)))
        change(session, job_id, now=state.db.now(), owner=caller.sees)
        return job_view(service.get_job(session, job_id))
