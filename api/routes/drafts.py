"""Drafts: list, read, and their files."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from api.auth import DraftsRead
from api.files import bundle_key, draft_files, store_response
from api.problems import responses
from api.schemas import DraftFiles, DraftPage, DraftView
from api.state import StateDep
from api.views import draft_view
from jobs import drafts, service
from jobs.errors import NotFound
from jobs.models import Alias

router = APIRouter(prefix="/v1/drafts", tags=["drafts"])

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
    base_model: Annotated[str | None, Query(description="Target the drafts are for.")] = None,
    revision: Annotated[str | None, Query(description="Commit or hash of that target.")] = None,
    alias: Annotated[Alias | None, Query(description="Only drafts with this alias.")] = None,
    name: Annotated[str | None, Query(description="Name of the registered model.")] = None,
    job_id: Annotated[str | None, Query(description="The job that made it.")] = None,
    after: Annotated[
        str | None, Query(max_length=40, description="`next` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> DraftPage:
    with state.db.read() as session:
        page = service.list_drafts(
            session,
            owner=caller.sees,
            base_model=base_model,
            revision=revision,
            alias=alias,
            name=name,
            job_id=job_id,
            after=after,
            limit=limit,
        )
        data = [draft_view(draft, state.store) for draft in page.items]
    return DraftPage(data=data, has_more=page.next_after is not None, next=page.next_after)


@router.get("/{ref}", operation_id="getDraft", summary="A draft", responses=responses(404))
def get_draft(ref: DraftRef, state: StateDep, caller: DraftsRead) -> DraftView:
    with state.db.read() as session:
        return draft_view(drafts.get_draft(session, ref, owner=caller.sees), state.store)


@router.get(
    "/{ref}/files",
    operation_id="listDraftFiles",
    summary="The files of a draft's bundle, with sizes and hashes",
    responses=responses(404),
)
def list_draft_files(ref: DraftRef, state: StateDep, caller: DraftsRead) -> DraftFiles:
    with state.db.read() as session:
        draft = draft_view(drafts.get_draft(session, ref, owner=caller.sees), state.store)
    return DraftFiles(draft_id=draft.id, data=draft_files(state.store, draft))


@router.get(
    "/{ref}/files/{path:path}",
    operation_id="getDraftFile",
    summary="One file of a draft's bundle",
    response_class=Response,
    responses={
        **responses(404),
        200: {
            "description": "The file; `X-Content-SHA256` is its recorded hash.",
            "content": {"application/octet-stream": {}},
        },
    },
)
def get_draft_file(
    ref: DraftRef,
    path: Annotated[str, Path(examples=["draft/model.safetensors"])],
    state: StateDep,
    caller: DraftsRead,
) -> Response:
    with state.db.read() as session:
        draft = draft_view(drafts.get_draft(session, ref, owner=caller.sees), state.store)
    file = next((f for f in draft_files(state.store, draft) if f.path == path), None)
    if file is None:
        raise NotFound(f"draft {draft.id} has no file {path!r}; GET /v1/drafts/{draft.id}/files")
    response = store_response(state.store, f"{bundle_key(state.store, draft)}/{path}", path)
    response.headers["x-content-sha256"] = file.sha256
    return response
