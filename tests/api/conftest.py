"""The real application on SQLite and a directory, and jobs in every state that a page may show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from api.app import create_app
from api.cli import app as cli
from api.cli.console import Connection
from api.client import Client
from api.state import State
from jobs import service
from jobs.base import Base
from jobs.drafts import add_draft
from jobs.events import append_event
from jobs.models import Draft, Job
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.states import JobStatus, StageStatus

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
BASE_URL = "http://127.0.0.1:8300"
PEPPER = SecretStr("p" * 32)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of whoever runs the tests stay out of them."""
    for name in ("UPDRAFT_URL", "UPDRAFT_API_KEY", "UPDRAFT_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UPDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def web(settings: Settings) -> Iterator[TestClient]:
    app = create_app(settings)
    Base.metadata.create_all(app.state.updraft.db.engine)
    with TestClient(app, base_url=BASE_URL, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def state(web: TestClient) -> State:
    found = web.app.state.updraft  # type: ignore[attr-defined]
    assert isinstance(found, State)
    return found


@pytest.fixture
def full_web(settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """Full mode's rules on the same SQLite: its servers have tests of their own."""
    full = settings.model_copy(update={"mode": "full", "api_key_pepper": PEPPER})
    app = create_app(full)
    Base.metadata.create_all(app.state.updraft.db.engine)
    with TestClient(app, base_url="https://updraft.example", raise_server_exceptions=False) as web:
        yield web


@pytest.fixture
def transport(web: TestClient) -> httpx.BaseTransport:
    """The application behind the real client, without a socket."""

    def answer(request: httpx.Request) -> httpx.Response:
        got = web.request(
            request.method,
            str(request.url),
            content=request.read(),
            headers=dict(request.headers),
        )
        return httpx.Response(got.status_code, headers=dict(got.headers), content=got.content)

    return httpx.MockTransport(answer)


@pytest.fixture
def client(transport: httpx.BaseTransport) -> Iterator[Client]:
    with Client(BASE_URL, transport=transport) as client:
        yield client


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def run(transport: httpx.BaseTransport) -> Callable[..., Ran]:
    """Run `updraft ARGS` against the application."""

    def run(*args: str) -> Ran:
        result = CliRunner().invoke(cli, args, obj=Connection(BASE_URL, transport=transport))
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def queued(state: State) -> str:
    """A job that nobody has taken."""
    with state.db.write() as session:
        spec = parse_spec({"target": "demo", "recipe": "quick", "labels": {"team": "a"}})
        job = service.submit(session, spec, settings=state.settings, now=NOW).job
    return job.id


@pytest.fixture
def training(state: State, queued: str) -> str:
    """A job in the middle of `train`."""
    with state.db.write() as session:
        job = _open(session, queued)
        job.status, job.started_at = JobStatus.RUNNING, NOW
        for stage in job.stages[:4]:
            stage.status, stage.started_at, stage.finished_at = StageStatus.SUCCEEDED, NOW, NOW
        job.stages[0].summary = {"resolved": "demo@sha256:abc", "num_layers": 30}
        stage = job.stages[4]
        stage.status, stage.started_at, stage.lease_token = StageStatus.RUNNING, NOW, "t"
        stage.progress = {
            "done": 120,
            "total": 194,
            "unit": "step",
            "rate": 0.8,
            "eta_s": 92.5,
            "message": None,
            "step": 120,
            "metrics": {"train/loss": 2.31, "eval/acceptance_length": 1.42},
        }
        append_event(session, queued, "stage.running", "train started", now=NOW)
    return queued


@pytest.fixture
def succeeded(state: State, queued: str) -> str:
    """A job with a registered draft, its bundle and its report in the store."""
    draft_id, prefix = "dft_01test", "drafts/dft_01test"
    files = {"draft/config.json": b"{}", "draft/model.safetensors": b"\x00" * 4096}
    for name, data in files.items():
        state.store.put_bytes(f"{prefix}/{name}", data)
    listed = {n: {"bytes": len(d), "sha256": _sha(d)} for n, d in files.items()}
    manifest = json.dumps({"files": listed}).encode()
    state.store.put_bytes(f"{prefix}/manifest.json", manifest)
    state.store.put_bytes(f"{prefix}/report/report.md", b"# Report\n\ntau 1.42\n")
    state.store.put_bytes(f"{prefix}/report/report.html", b"<h1>Report</h1>")
    with state.db.write() as session:
        job = _open(session, queued)
        _end(job, JobStatus.SUCCEEDED)
        job.result = {
            "draft_id": draft_id,
            "artifacts": {
                "report.md": f"{prefix}/report/report.md",
                "report.html": f"{prefix}/report/report.html",
            },
        }
        draft = Draft(
            id=draft_id,
            job_id=queued,
            owner=job.owner,
            name="eagle3--demo",
            target="demo",
            target_resolved="demo@sha256:abc",
            weights_sha256="w" * 64,
            tokenizer_sha256="t" * 64,
            template_sha256="m" * 64,
            capture_layers=[2, 15, 27],
            metrics={"tau": 1.42, "speedup": 1.1, "lossless": True},
            uri=prefix,
            manifest_sha256=_sha(manifest),
            created_at=NOW,
        )
        add_draft(session, draft, champion=True, now=NOW)
        append_event(session, queued, "job.succeeded", "done", now=NOW)
    return queued


@pytest.fixture
def failed(state: State, queued: str) -> str:
    with state.db.write() as session:
        job = _open(session, queued)
        _end(job, JobStatus.FAILED)
        job.error = {
            "reason": "bad_input",
            "message": "the target has 4 layers, at least 7 are needed",
            "hint": "choose a larger model",
            "stage": "resolve",
            "attempt": 1,
            "retryable": False,
        }
        append_event(session, queued, "job.failed", "bad input", level="error", now=NOW)
    return queued


def _open(session: Session, job_id: str) -> Job:
    return service.get_job(session, job_id)


def _end(job: Job, status: JobStatus) -> None:
    job.status, job.started_at, job.finished_at = status, NOW, NOW
    to = StageStatus.SUCCEEDED if status is JobStatus.SUCCEEDED else StageStatus.CANCELLED
    for stage in job.stages:
        stage.status, stage.started_at, stage.finished_at = to, NOW, NOW


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def problem_of(response: Any, status: int) -> dict[str, Any]:
    """The problem document of an answer, whose form is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["type"].startswith("urn:updraft:problem:")
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    return body
