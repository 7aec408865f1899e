"""API keys, made and taken back by administrators, and what a key's owner has used."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query
from pydantic import SecretStr

from api.auth import Admin, JobsRead, JobsWrite
from api.problems import responses
from api.query import no_others
from api.schemas import HubTokenBody, KeyBody, KeyList, KeyView, NewKey, RotateBody, UsageView
from api.state import State, StateDep
from api.views import usage_view
from jobs import hub_tokens, keys
from jobs.errors import Conflict

router = APIRouter(prefix="/v1", tags=["keys"], dependencies=[Depends(no_others)])

KeyId = Annotated[str, Path(max_length=40, examples=["key_01kb8m2v9x3tq7c5"])]


@router.get(
    "/api-keys",
    operation_id="listKeys",
    summary="All keys, newest first",
    responses=responses(),
)
def list_keys(state: StateDep, caller: Admin) -> KeyList:
    with state.db.read() as session:
        return KeyList(data=[KeyView.model_validate(row) for row in keys.list_keys(session)])


@router.post(
    "/api-keys",
    status_code=201,
    operation_id="createKey",
    summary="Make a key",
    description="The key itself is in this answer and nowhere else.",
    responses=responses(400, 409),
)
def create_key(body: KeyBody, state: StateDep, caller: Admin) -> NewKey:
    pepper, now = _pepper(state), state.db.now()
    with state.db.write() as session:
        row, token = keys.create_key(
            session,
            body.name,
            body.scopes,
            pepper=pepper,
            now=now,
            expires_at=now + timedelta(days=body.days) if body.days else None,
            idempotency_required=body.idempotency_required,
        )
    return NewKey(**KeyView.model_validate(row).model_dump(), key=token)


@router.get("/api-keys/{key_id}", operation_id="getKey", summary="A key", responses=responses(404))
def get_key(key_id: KeyId, state: StateDep, caller: Admin) -> KeyView:
    with state.db.read() as session:
        return KeyView.model_validate(keys.get_key(session, key_id))


@router.post(
    "/api-keys/{key_id}/rotate",
    status_code=201,
    operation_id="rotateKey",
    summary="Replace a key",
    description="The new key has the same name, scopes and owner, so it sees the same jobs. The "
    "former one works until the overlap is over.",
    responses=responses(400, 404, 409),
)
def rotate_key(
    key_id: KeyId,
    state: StateDep,
    caller: Admin,
    body: Annotated[RotateBody, Body()] = RotateBody(),  # noqa: B008  frozen
) -> NewKey:
    pepper = _pepper(state)
    with state.db.write() as session:
        row, token = keys.rotate_key(
            session,
            key_id,
            pepper=pepper,
            now=state.db.now(),
            overlap=timedelta(hours=body.overlap_hours),
        )
    return NewKey(**KeyView.model_validate(row).model_dump(), key=token)


@router.delete(
    "/api-keys/{key_id}",
    operation_id="revokeKey",
    summary="Make a key useless from now on",
    responses=responses(404),
)
def revoke_key(key_id: KeyId, state: StateDep, caller: Admin) -> KeyView:
    with state.db.write() as session:
        return KeyView.model_validate(keys.revoke_key(session, key_id, now=state.db.now()))


@router.put(
    "/api-keys/{key_id}/hub-token",
    operation_id="setHubToken",
    summary="Fetch the key's jobs' models with a token of its own",
    description="An owner has one: it takes the place of any that was set with another of the "
    "owner's keys, and of the deployment's. A key may set its own and those of keys with the same "
    "owner, administrators all. It is kept encrypted, is in no answer, and ends with its key.",
    responses=responses(400, 404, 409),
)
def set_hub_token(key_id: KeyId, body: HubTokenBody, state: StateDep, caller: JobsWrite) -> KeyView:
    pepper, now = _pepper(state), state.db.now()
    with state.db.write() as session:
        row = keys.get_key(session, key_id, owner=caller.sees)
        hub_tokens.set_hub_token(session, row, body.token, pepper=pepper, now=now)
        return KeyView.model_validate(row)


@router.delete(
    "/api-keys/{key_id}/hub-token",
    operation_id="removeHubToken",
    summary="Forget the hub token of a key's owner",
    responses=responses(404, 409),
)
def remove_hub_token(key_id: KeyId, state: StateDep, caller: JobsWrite) -> KeyView:
    _pepper(state)
    with state.db.write() as session:
        row = keys.get_key(session, key_id, owner=caller.sees)
        hub_tokens.forget_hub_token(session, row.owner)
        return KeyView.model_validate(row)


@router.get(
    "/usage",
    operation_id="getUsage",
    summary="What your jobs have used, and may use",
    responses=responses(),
)
def get_usage(
    state: StateDep,
    caller: JobsRead,
    since: Annotated[
        date | None, Query(description="First day of the period; 30 days ago when empty.")
    ] = None,
) -> UsageView:
    now = state.db.now()
    first = since or (now - timedelta(days=30)).date()
    with state.db.read() as session:
        return usage_view(session, caller.owner, state.settings, first, now)


def _pepper(state: State) -> SecretStr:
    pepper = state.settings.api_key_pepper
    if state.settings.mode != "full" or pepper is None:
        raise Conflict("embedded mode has no API keys: it answers on this machine only")
    return pepper
