"""The files of a draft's bundle."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Response

from api.auth import DraftsRead
from api.files import bundle_key, download_url, draft_files, store_response
from api.problems import responses
from api.query import no_others
from api.routes.drafts import DraftRef, draft_of
from api.schemas import DownloadUrl, DraftFile, DraftFiles, DraftView
from api.state import State, StateDep
from jobs.errors import NotFound

router = APIRouter(
    prefix="/v1/drafts/{ref}/files", tags=["drafts"], dependencies=[Depends(no_others)]
)

FilePath = Annotated[str, Path(max_length=256, examples=["draft/model.safetensors"])]


@router.get(
    "",
    operation_id="listDraftFiles",
    summary="The files of a draft's bundle, with sizes and hashes",
    responses=responses(404),
)
def list_draft_files(ref: DraftRef, state: StateDep, caller: DraftsRead) -> DraftFiles:
    draft = draft_of(state, ref, caller)
    return DraftFiles(draft_id=draft.id, data=draft_files(state.store, draft))


@router.get(
    "/{path:path}",
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
def get_draft_file(ref: DraftRef, path: FilePath, state: StateDep, caller: DraftsRead) -> Response:
    draft = draft_of(state, ref, caller)
    file = _one(state, draft, path)
    response = store_response(state.store, f"{bundle_key(state.store, draft)}/{path}", path)
    response.headers["x-content-sha256"] = file.sha256
    return response


@router.post(
    "/{path:path}/download-url",
    operation_id="linkDraftFile",
    summary="A link to a file of a draft's bundle that needs no key",
    description="Of the store itself, for 15 minutes at most; a path of this API where the store "
    "gives out no links.",
    responses=responses(404),
)
def link_draft_file(
    ref: DraftRef, path: FilePath, state: StateDep, caller: DraftsRead
) -> DownloadUrl:
    draft = draft_of(state, ref, caller)
    _one(state, draft, path)
    key = f"{bundle_key(state.store, draft)}/{path}"
    return download_url(state.store, key, f"/v1/drafts/{draft.id}/files/{quote(path)}")


def _one(state: State, draft: DraftView, path: str) -> DraftFile:
    for file in draft_files(state.store, draft):
        if file.path == path:
            return file
    raise NotFound(f"draft {draft.id} has no file {path!r}; GET /v1/drafts/{draft.id}/files")
