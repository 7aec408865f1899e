"""Who calls. Embedded mode is one user on loopback; full mode knows API keys and their scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from api.state import state_of
from jobs.errors import Forbidden, Unauthorized
from jobs.keys import authenticate, note_use, use_is_noted
from jobs.service import LOCAL_OWNER

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description="An API key, in full mode. Embedded mode binds to loopback and needs none.",
)


@dataclass(frozen=True)
class Caller:
    """Whose jobs a request makes and may see."""

    owner: str
    sees: str | None
    """Owner that reading is limited to; None for an administrator, who sees everyone's."""
    idempotency_required: bool = False
    """Whether a submission must carry an idempotency key."""


def caller(
    request: Request,
    needed: SecurityScopes,
    sent: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> Caller:
    """The caller of a request, who holds the scopes that the route asks for.

    Raises:
        Unauthorized: full mode, and no valid key.
        Forbidden: the key lacks a scope.
    """
    state = state_of(request)
    if state.settings.mode == "embedded":
        return Caller(LOCAL_OWNER, LOCAL_OWNER)
    pepper = state.settings.api_key_pepper
    if sent is None or pepper is None:
        raise Unauthorized("no API key; send one as Authorization: Bearer upd_…")
    now = state.db.now()
    with state.db.read() as session:
        key = authenticate(session, sent.credentials, pepper=pepper, now=now)
    if not use_is_noted(key, now):
        with state.db.write() as session:
            note_use(session, key, now)
    state.limiter.take(request, key.owner)
    if "admin" in key.scopes:
        return Caller(key.owner, None, key.idempotency_required)
    if missing := [scope for scope in needed.scopes if scope not in key.scopes]:
        raise Forbidden(f"this key lacks the scope {', '.join(missing)}; make another with it")
    return Caller(key.owner, key.owner, key.idempotency_required)


JobsRead = Annotated[Caller, Security(caller, scopes=["jobs:read"])]
JobsWrite = Annotated[Caller, Security(caller, scopes=["jobs:write"])]
DraftsRead = Annotated[Caller, Security(caller, scopes=["drafts:read"])]
DraftsPromote = Annotated[Caller, Security(caller, scopes=["drafts:promote"])]
MetricsRead = Annotated[Caller, Security(caller, scopes=["metrics:read"])]
Admin = Annotated[Caller, Security(caller, scopes=["admin"])]
