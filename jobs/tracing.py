"""Traces, where the standard's own OTEL_EXPORTER_OTLP_ENDPOINT says where to: one for each job,
from the request that made it, over its stages, to their processes. Without it nothing of
OpenTelemetry is imported.

The request's place in the trace is kept in the job's first event; the worker goes on from there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.errors import Invalid
from jobs.models import JobEvent

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PLACE = "traceparent"
"""W3C Trace Context: the header, and the field of the first event."""


class Note(Protocol):
    """Adds a fact to the span that is open."""

    def __call__(self, **facts: str | int | float) -> None: ...


_backend: Any = None


def configure(service: str) -> None:
    """Send spans from now on, if an endpoint is set; `service` is this process's name in them.

    Raises:
        Invalid: it is set, and OpenTelemetry is not installed.
    """
    global _backend
    if not os.environ.get(ENDPOINT):
        return
    try:
        backend = importlib.import_module("jobs.tracing_backend")
    except ImportError as e:
        raise Invalid(f"{ENDPOINT} is set; that needs pip install 'updraft[otel]' ({e})") from e
    _backend = backend.Backend(service)


def stop() -> None:
    """Send what is left, and no more."""
    global _backend
    if _backend is not None:
        _backend.close()
    _backend = None


@contextmanager
def span(name: str, parent: str | None = None, **facts: str | int | float) -> Iterator[Note]:
    """Work with a beginning and an end, below `parent` (a `traceparent`) or the span around it.

    An exception that leaves it marks it as failed, by its class alone.
    """
    if _backend is None:
        yield _ignore
        return
    with _backend.span(name, parent, facts) as note:
        yield note


def here() -> dict[str, str]:
    """`{traceparent}` of the open span; empty where there is none."""
    return {} if _backend is None else _backend.here()


def of_job(session: Session, job_id: str) -> str | None:
    """Where the trace of a job begins."""
    if _backend is None:
        return None
    query = select(JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.seq == 1)
    return (session.scalar(query) or {}).get(PLACE)


def _ignore(**_: str | int | float) -> None:
    """Nobody traces."""
