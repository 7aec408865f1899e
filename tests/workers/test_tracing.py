"""One trace from the request over the stage to its process, as a real collector receives it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from api.app import create_app
from jobs import leases, tracing
from tests.workers.conftest import MakeRuntime, events_of
from workers.stage import run_lease

OUTSIDE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(HTTPServer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The test says what matters."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(tracing.ENDPOINT, f"http://127.0.0.1:{server.server_port}")
        tracing.configure("test")
        yield server
        tracing.stop()
        server.shutdown()
        thread.join()


def test_one_trace_from_request_to_process(collector: Collector, make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    with TestClient(create_app(rt.settings), base_url="http://127.0.0.1:8300") as web:
        body = {"target": "demo", "recipe": "quick"}
        made = web.post("/v1/jobs", json=body, headers={"traceparent": OUTSIDE})
        job_id = made.json()["id"]
    with rt.db.write() as s:
        lease = leases.claim(s, rt.owner, settings=rt.settings, now=rt.clock())
    assert lease is not None
    run_lease(rt, lease)
    tracing.stop()
    spans = {span.name: span for span in collector.spans}
    request, stage, child = (
        spans[name] for name in ("POST /v1/jobs", "stage resolve", "eagle3 resolve")
    )
    assert {span.trace_id.hex() for span in (request, stage, child)} == {OUTSIDE[3:35]}
    assert request.parent_span_id.hex() == OUTSIDE[36:52]
    assert (stage.parent_span_id, child.parent_span_id) == (request.span_id, stage.span_id)
    facts = {a.key: a.value for a in child.attributes}
    assert facts["updraft.exit_code"].int_value == 0
    assert events_of(rt, job_id)[0].data["traceparent"][36:52] == request.span_id.hex()


def test_a_failure_is_marked_without_its_text(collector: Collector) -> None:
    with pytest.raises(ValueError, match="hf_"), tracing.span("work"):
        raise ValueError("hf_abcdefghijkl")
    tracing.stop()
    (span,) = collector.spans
    assert (span.status.code, span.status.message) == (span.status.STATUS_CODE_ERROR, "ValueError")
    assert "hf_abcdefghijkl" not in str(span)


def test_without_an_endpoint_nothing_is_imported() -> None:
    code = (
        "import sys, jobs.tracing as t; t.configure('x')\n"
        "with t.span('work') as note: note(a=1)\n"
        "assert t.here() == {}\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={})
