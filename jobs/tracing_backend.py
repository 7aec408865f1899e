"""OpenTelemetry behind `jobs.tracing`; imported only where an endpoint is set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

PROPAGATOR = TraceContextTextMapPropagator()


class Backend:
    """A provider of our own: the process's global one is left to others."""

    def __init__(self, service: str) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("updraft")

    @contextmanager
    def span(self, name: str, parent: str | None, facts: dict[str, Any]) -> Iterator[Any]:
        context = PROPAGATOR.extract({"traceparent": parent}) if parent else None
        with self._tracer.start_as_current_span(
            name,
            context,
            attributes=_named(facts),
            record_exception=False,  # its text may hold what a log would have redacted
            set_status_on_exception=False,
        ) as span:

            def note(**more: Any) -> None:
                span.set_attributes(_named(more))

            try:
                yield note
            except BaseException as e:
                span.set_status(Status(StatusCode.ERROR, type(e).__name__))
                raise

    def here(self) -> dict[str, str]:
        found: dict[str, str] = {}
        PROPAGATOR.inject(found)
        return {name: found[name] for name in ("traceparent",) if name in found}

    def close(self) -> None:
        self._provider.shutdown()


def _named(facts: dict[str, Any]) -> dict[str, Any]:
    return {f"updraft.{name}": value for name, value in facts.items()}
