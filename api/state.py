"""What every route works with: made once by `create_app`, never global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.limits import Limiter
from jobs.db import Database
from jobs.settings import Settings
from jobs.store import ObjectStore


@dataclass(frozen=True)
class State:
    settings: Settings
    db: Database
    store: ObjectStore
    limiter: Limiter
    secret: bytes
    """Signs cursors."""


def state_of(request: Request) -> State:
    """The application's state."""
    state = request.app.state.updraft
    assert isinstance(state, State)  # noqa: S101  create_app sets it
    return state


async def _state(request: Request) -> State:
    return state_of(request)  # a coroutine, since anything else is run in a thread


StateDep = Annotated[State, Depends(_state)]
