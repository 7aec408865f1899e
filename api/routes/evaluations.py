"""Evaluations: registered drafts that are measured again, alone or beside another one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy.orm import Session

from api.auth import Caller, DraftsRead, JobsWrite
from api.cursor import After, Cursors, Limit
from api.problems import responses
from api.query import no_others
from api.routes.drafts import DraftRef
from api.schemas import EvaluationBody, EvaluationPage, EvaluationView, JobView
from api.state import StateDep
from api.submissions import IdempotencyKey, answer, check_key
from api.views import job_view
from jobs import service
from jobs.drafts import get_draft
from jobs.evaluate_spec import Evaluate
from jobs.evaluations import evaluation_of, list_evaluations, with_drafts
from jobs.models import Job
from jobs.spec import JobSpec, parse_spec

router = APIRouter(prefix="/v1/drafts", tags=["drafts"], dependencies=[Depends(no_others)])

OF_JOB = ("target", "prompts", "gates")
Asked = Annotated[
    EvaluationBody,
    Body(
        openapi_examples={
            "own": {"summary": "On its own target, as it was made", "value": {}},
            "canary": {
                "summary": "Beside the champion",
                "value": {"against": "champion", "count": 50},
            },
            "checkpoint": {
                "summary": "On another checkpoint",
                "value": {"target": "acme/model@4f2a91", "gates": {"min_tau": 1.3}},
            },
        }
    ),
]


@router.post(
    "/{ref}/evaluations",
    status_code=202,
    operation_id="evaluateDraft",
    summary="Measure a draft, and train nothing",
    description="A job decodes held-out prompts with the draft and without it, compares every "
    "answer with the target's own, and does the same with the draft that it is held against. Its "
    "`result` is also listed with the draft.",
    responses=responses(400, 404, 429),
)
def evaluate_draft(
    ref: DraftRef,
    body: Asked,
    state: StateDep,
    caller: JobsWrite,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    check_key(caller, idempotency_key)
    settings, now, owner = state.settings, state.db.now(), caller.owner
    asked = {"evaluate": ref, **body.model_dump(mode="json")}
    with state.db.write() as session:
        submission = service.repeated(
            session, asked, idempotency_key, settings=settings, now=now, owner=owner
        ) or service.submit(
            session,
            _spec(session, ref, body, caller),
            settings=settings,
            now=now,
            owner=owner,
            sees=caller.sees,
            idempotency_key=idempotency_key,
            asked=asked,
        )
    job = job_view(submission.job)
    answer(response, submission, f"/v1/jobs/{job.id}")
    return job


@router.get(
    "/{ref}/evaluations",
    operation_id="listEvaluations",
    summary="Evaluations of a draft, newest first",
    responses=responses(404),
)
def list_of_draft(
    ref: DraftRef, state: StateDep, caller: DraftsRead, after: After = None, limit: Limit = 20
) -> EvaluationPage:
    with state.db.read() as session:
        draft = get_draft(session, ref, owner=caller.sees)
        cursors = Cursors(state.secret, "evaluations", caller.sees, draft.id)
        page = list_evaluations(session, draft, after=cursors.read(after), limit=limit)
        data = [
            EvaluationView(
                id=one.id,
                job_id=job.id,
                job_status=job.status.value,
                draft_id=one.draft_id,
                against_id=one.against_id,
                target=job.target,
                result=one.result,
                created_at=one.created_at,
                finished_at=one.finished_at,
            )
            for one, job in page.items
        ]
    following = cursors.make(page.next_after)
    return EvaluationPage(data=data, has_more=following is not None, next=following)


def _spec(session: Session, ref: str, body: EvaluationBody, caller: Caller) -> JobSpec:
    """The job, its drafts named by id; raises `NotFound` and `InvalidSpec`."""
    draft = get_draft(session, ref, owner=caller.sees)
    how = body.model_dump(exclude={*OF_JOB})
    evaluate = Evaluate(draft=draft.id, **how)
    former = JobSpec.model_validate(session.get_one(Job, draft.job_id).spec)
    spec = evaluation_of(former, draft, evaluate)
    said: dict[str, Any] = {name: getattr(body, name) for name in OF_JOB}
    said = {name: value for name, value in said.items() if value is not None}
    if said:
        spec = parse_spec({**spec.model_dump(mode="json"), **said})
    return with_drafts(session, spec, caller.sees, at="")
