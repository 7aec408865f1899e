"""What happened to a job: as pages, and as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from api.auth import JobsRead
from api.problems import responses
from api.query import no_others
from api.routes.jobs import JobId
from api.schemas import EventPage, EventView
from api.state import State, StateDep
from jobs import service

router = APIRouter(
    prefix="/v1/jobs/{job_id}/events", tags=["events"], dependencies=[Depends(no_others)]
)

STREAM_POLL_S = 1.0
"""How often a stream looks for new events."""

BATCH = 100

MAX_SEQ = 2**31 - 1
"""What the database's column holds."""


def visible_job(job_id: JobId, state: StateDep, caller: JobsRead) -> str:
    """The id of a job that exists and that the caller may see: checked before a stream begins."""
    with state.db.read() as session:
        return service.get_job(session, job_id, owner=caller.sees).id


VisibleJob = Annotated[str, Depends(visible_job)]


@router.get(
    "",
    operation_id="listEvents",
    summary="Events, oldest first",
    responses=responses(404),
)
def list_events(
    job: VisibleJob,
    state: StateDep,
    after: Annotated[
        int, Query(ge=0, le=MAX_SEQ, description="Only events with a greater `seq`.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> EventPage:
    with state.db.read() as session:
        found = service.list_events(session, job, after=after, limit=limit + 1)
        data = [EventView.model_validate(event) for event in found[:limit]]
    return EventPage(data=data, has_more=len(found) > limit)


@router.get(
    "/stream",
    operation_id="streamEvents",
    summary="Events as they happen (server-sent events)",
    description="`id` is the event's `seq`; `Last-Event-ID` resumes after it. The stream closes "
    "after the job's last event.",
    response_class=EventSourceResponse,
    responses=responses(404),
)
async def stream_events(
    job: VisibleJob,
    state: StateDep,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_SEQ)] = 0,
) -> AsyncIterable[ServerSentEvent]:
    after = last_event_id
    while True:
        events, ended = await run_in_threadpool(_next_events, state, job, after)
        for event in events:
            yield ServerSentEvent(data=event, event=event.type, id=str(event.seq))
            after = event.seq
        if ended:
            return
        if len(events) < BATCH:
            await asyncio.sleep(STREAM_POLL_S)


def _next_events(state: State, job_id: str, after: int) -> tuple[list[EventView], bool]:
    """Events after one, and whether the job will have no more than these."""
    with state.db.read() as session:
        job = service.get_job(session, job_id)
        found = service.list_events(session, job_id, after=after, limit=BATCH)
        last = found[-1].seq if found else after
        ended = job.status.terminal and last >= job.event_seq
        return [EventView.model_validate(event) for event in found], ended
