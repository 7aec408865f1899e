"""Whether the process lives, and whether what it leans on answers. Neither needs a key."""

from __future__ import annotations

import importlib.metadata
import logging
import os

from fastapi import APIRouter, Response
from kombu import Connection
from kombu.exceptions import OperationalError
from sqlalchemy.exc import SQLAlchemyError

from api.schemas import Health, Readiness
from api.state import State, StateDep
from jobs import service, tally
from jobs.errors import UpdraftError

log = logging.getLogger(__name__)
router = APIRouter(tags=["health"])

BROKER_TIMEOUT_S = 2.0
SWEEPS_MISSED = 3
RELAY_RETRY_S = 20.0
"""A relay whose round has failed waits nearly as long before the next."""


@router.get("/livez", operation_id="live", summary="The process answers")
def livez() -> Health:
    return Health(version=importlib.metadata.version("updraft"))


@router.get(
    "/readyz",
    operation_id="ready",
    summary="Database, object store and broker answer; a relay is at work",
    responses={503: {"model": Readiness, "description": "One of them does not; `checks` says."}},
)
def readyz(state: StateDep, response: Response) -> Readiness:
    checks = {"db": _db(state), "store": _store(state), "broker": _broker(state)}
    ready = all(found == "ok" for found in checks.values())
    checks["relay"] = _relay(state) if checks["db"] == "ok" else "cannot be told without db"
    if all(found == "ok" for found in checks.values()):
        return Readiness(status="ok", checks=checks)
    log.warning("not ready: %s", checks)
    if ready:  # reading goes on, and what is submitted is kept: no reason to turn anybody away
        return Readiness(status="degraded", checks=checks)
    response.status_code = 503
    return Readiness(status="unavailable", checks=checks)


def _db(state: State) -> str:
    try:
        with state.db.read() as session:
            service.list_jobs(session, limit=1)
    except SQLAlchemyError as error:
        # The driver's text may hold the URL; the class says enough, the rest is for the log.
        log.warning("database check failed", exc_info=error)
        return f"does not answer, or was never migrated ({type(error).__name__})"
    return "ok"


def _relay(state: State) -> str:
    with state.db.read() as session:
        swept = tally.seen(session, tally.RELAY)
    if swept is None:
        return "none has ever swept; start one"
    age = (state.db.now() - swept).total_seconds()
    if age > SWEEPS_MISSED * state.settings.sweep_seconds + RELAY_RETRY_S:
        return f"the last sweep was {age:.0f} s ago; see that a relay runs"
    return "ok"


def _store(state: State) -> str:
    try:
        state.store.ping()
    except UpdraftError as error:
        return str(error)
    return "ok"


def _broker(state: State) -> str:
    if state.settings.mode == "embedded":
        writable = os.access(state.settings.home, os.W_OK)
        return "ok" if writable else f"{state.settings.home} is not writable"
    try:
        with Connection(state.settings.broker_url, connect_timeout=BROKER_TIMEOUT_S) as broker:
            broker.ensure_connection(max_retries=1, timeout=BROKER_TIMEOUT_S)
    except (OperationalError, OSError) as error:
        log.warning("broker check failed", exc_info=error)
        return f"does not answer ({type(error).__name__})"
    return "ok"
