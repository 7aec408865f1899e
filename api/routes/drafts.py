"""Drafts: list, read, promote, roll back, deprecate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from api.auth import Caller, DraftsPromote, DraftsRead
from api.conditional import UNCHANGED, IfMatch, IfNoneMatch, check_match, tagged
from api.cursor import After, Cursors, Limit
from api.problems import responses
from api.query import no_others
from api.schemas import DeprecateBody, DraftPage, DraftView
from api.state import State, StateDep
from api.views import draft_view, draft_views
from jobs import drafts, service
from jobs.models import Alias, Draft

router = APIRouter(prefix="/v1/drafts", tags=["drafts"], dependencies=[Depends(no_others)])

CHANGES = responses(404, 409, 412)
DraftRef = Annotated[
    str,
    Path(
        max_length=300,
        description="A draft's id or its job's, or a registered name, whose champion (else newest) "
        "is meant.",
        examples=["dft_01kb8m2v9x3tq7c5", "eagle3--demo@champion"],
    ),
]


@router.get(
    "",
    operation_id="listDrafts",
    summary="List drafts, newest first",
    responses=responses(),
)
def list_drafts(
    state: StateDep,
    caller: DraftsRead,
    base_model: Annotated[
        str | None, Query(max_length=1024, description="Target the drafts are for.")
    ] = None,
    revision: Annotated[
        str | None, Query(max_length=256, description="Commit or hash of that target.")
    ] = None,
    alias: Annotated[Alias | None, Query(description="Only drafts with this alias.")] = None,
    name: Annotated[
        str | None, Query(max_length=256, description="Name of the registered model.")
    ] = None,
    job_id: Annotated[str | None, Query(max_length=40, description="The job that made it.")] = None,
    deprecated: Annotated[
        bool | None, Query(description="Only deprecated drafts, or only the others.")
    ] = None,
    after: After = None,
    limit: Limit = 20,
) -> DraftPage:
    filters = (base_model, revision, alias, name, job_id, deprecated)
    cursors = Cursors(state.secret, "drafts", caller.sees, *filters)
    with state.db.read() as session:
        page = service.list_drafts(
            session,
            owner=caller.sees,
            base_model=base_model,
            revision=revision,
            alias=alias,
            name=name,
            job_id=job_id,
            deprecated=deprecated,
            after=cursors.read(after),
            limit=limit,
        )
        data = draft_views(session, page.items, state.store)
    following = cursors.make(page.next_after)
    return DraftPage(data=data, has_more=following is not None, next=following)


@router.get(
    "/{ref}",
    operation_id="getDraft",
    summary="A draft",
    response_model=DraftView,
    responses={**responses(404), **UNCHANGED},
)
def get_draft(
    ref: DraftRef, state: StateDep, caller: DraftsRead, if_none_match: IfNoneMatch = None
) -> Response:
    return tagged(draft_of(state, ref, caller), if_none_match)


@router.post(
    "/{ref}/promote",
    operation_id="promoteDraft",
    summary="Make a draft champion",
    description="The former champion for the same name and target is `previous` from then on. With "
    "`If-Match` of the draft as it was read, a rival's promotion in between is noticed.",
    responses=CHANGES,
)
def promote_draft(
    ref: DraftRef, state: StateDep, caller: DraftsPromote, if_match: IfMatch = None
) -> DraftView:
    return _change(state, ref, caller, if_match, drafts.promote)


@router.post(
    "/{ref}/rollback",
    operation_id="rollBackDraft",
    summary="Make the previous champion champion again",
    description="`ref` is any draft of the same name and target, such as the present champion. The "
    "answer is the draft that is champion now.",
    responses=CHANGES,
)
def roll_back_draft(
    ref: DraftRef, state: StateDep, caller: DraftsPromote, if_match: IfMatch = None
) -> DraftView:
    return _change(state, ref, caller, if_match, drafts.roll_back)


@router.post(
    "/{ref}/deprecate",
    operation_id="deprecateDraft",
    summary="Say that a draft should not be used",
    description="Names no longer lead to it, and it cannot be promoted; its id still does, and its "
    "files stay. A champion has to be replaced first.",
    responses={**CHANGES, **responses(400)},
)
def deprecate_draft(
    ref: DraftRef,
    body: DeprecateBody,
    state: StateDep,
    caller: DraftsPromote,
    if_match: IfMatch = None,
) -> DraftView:
    return _change(state, ref, caller, if_match, partial(drafts.deprecate, reason=body.reason))


@router.post(
    "/{ref}/reinstate",
    operation_id="reinstateDraft",
    summary="Take a deprecation back",
    responses=CHANGES,
)
def reinstate_draft(
    ref: DraftRef, state: StateDep, caller: DraftsPromote, if_match: IfMatch = None
) -> DraftView:
    return _change(state, ref, caller, if_match, drafts.reinstate)


def draft_of(state: State, ref: str, caller: Caller) -> DraftView:
    """The draft that a path names; raises `NotFound`."""
    with state.db.read() as session:
        return draft_view(session, drafts.get_draft(session, ref, owner=caller.sees), state.store)


def _change(
    state: State, ref: str, caller: Caller, if_match: str | None, change: Callable[..., Draft]
) -> DraftView:
    """Do something to a draft, if it is still as the caller has seen it."""
    with state.db.write() as session:
        draft = drafts.lock_rivals(session, drafts.get_draft(session, ref, owner=caller.sees))
        check_match(if_match, draft_view(session, draft, state.store))
        return draft_view(session, change(session, draft, now=state.db.now()), state.store)
