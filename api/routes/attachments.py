"""Attachments: a checkpoint gets its draft; and what becomes of drafts as they are served."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.attach_views import attachment_view
from api.auth import JobsRead, JobsWrite
from api.problems import responses
from api.query import no_others
from api.routes.drafts import DraftRef
from api.schemas import AttachmentBody, AttachmentView, DriftView, ObservationBody, ObservationView
from api.state import StateDep
from api.submissions import IdempotencyKey, answer, check_key
from jobs import drafts, service
from jobs.attach_policy import with_defaults
from jobs.attachments import get_attachment
from jobs.drift import Counted
from jobs.observations import observe
from jobs.spec import parse_spec

router = APIRouter(prefix="/v1", tags=["attachments"], dependencies=[Depends(no_others)])

AttachmentId = Annotated[
    str,
    Path(
        max_length=40,
        description="An attachment's id, or its job's.",
        examples=["att_01kb8m2v9x3tq7c5"],
    ),
]


@router.post(
    "/attachments",
    status_code=202,
    operation_id="attach",
    summary="Have a checkpoint get its draft",
    description="Drafts that exist are tried on it first. One that still accepts enough is reused, "
    "one that has lost some is trained on, and only else is one trained from scratch.",
    responses=responses(400, 429),
)
def attach(
    body: AttachmentBody,
    state: StateDep,
    caller: JobsWrite,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> AttachmentView:
    check_key(caller, idempotency_key)
    spec = parse_spec(with_defaults(body.target, body.policy))
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
        view = attachment_view(session, submission.job.id, state.store)
    answer(response, submission, f"/v1/attachments/{view.id}")
    return view


@router.get(
    "/attachments/{attachment_id}",
    operation_id="getAttachment",
    summary="An attachment: the decision, its evidence and its outcome",
    responses=responses(404),
)
def read_attachment(
    attachment_id: AttachmentId, state: StateDep, caller: JobsRead
) -> AttachmentView:
    with state.db.read() as session:
        found, _ = get_attachment(session, attachment_id, owner=caller.sees)
        return attachment_view(session, found.id, state.store)


@router.post(
    "/drafts/{ref}/observations",
    operation_id="observeDraft",
    summary="Report how a served draft is accepted",
    description="Where it falls below what it is registered with, by more than its policy puts up "
    "with and beyond doubt, the draft says so (`drift`), webhooks are told (`draft.drifted`) and, "
    "if the policy says so, a job goes on from it.",
    responses=responses(400, 404),
)
def observe_draft(
    ref: DraftRef, body: ObservationBody, state: StateDep, caller: JobsWrite
) -> ObservationView:
    counters = Counted(body.rounds, body.accepted, tuple(body.accepted_at))
    with state.db.write() as session:
        draft = drafts.get_draft(session, ref, owner=caller.sees)
        row, verdict = observe(
            session, draft, body.source, counters, settings=state.settings, now=state.db.now()
        )
        return ObservationView(
            draft_id=draft.id,
            source=row.source,
            rounds=row.rounds,
            accepted=row.accepted,
            verdict=None if verdict is None else DriftView(**verdict.record()),
            drift=draft.drift,
            created_at=row.created_at,
        )
