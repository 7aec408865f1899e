"""Who may read the figures."""

from __future__ import annotations

import json
import logging

import pytest
from fastapi.testclient import TestClient

from jobs.ids import utcnow
from jobs.keys import create_key
from tests.api.conftest import PEPPER, problem_of


def _key(full_web: TestClient, scope: str) -> dict[str, str]:
    db = full_web.app.state.updraft.db  # type: ignore[attr-defined]
    with db.write() as session:
        _, token = create_key(session, "one", [scope], pepper=PEPPER, now=utcnow())
    return {"authorization": f"Bearer {token}"}


def test_loopback_needs_no_key(web: TestClient, queued: str) -> None:
    answer = web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'updraft_jobs{status="queued"} 1.0' in answer.text.splitlines()


def test_in_full_mode_a_key_of_its_own(full_web: TestClient) -> None:
    problem_of(full_web.get("/metrics"), 401)
    problem_of(full_web.get("/metrics", headers=_key(full_web, "jobs:read")), 403)
    headers = _key(full_web, "metrics:read")
    assert full_web.get("/metrics", headers=headers).status_code == 200
    problem_of(full_web.get("/v1/jobs", headers=headers), 403)


def test_full_mode_logs_requests_without_their_query(
    full_web: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "api.access")
    full_web.get("/v1/jobs?after=something", headers={"x-request-id": "abc-1"})
    (record,) = (r for r in caplog.records if r.name == "api.access")
    told = {name: record.__dict__[name] for name in ("method", "path", "status", "request_id")}
    assert told == {"method": "GET", "path": "/v1/jobs", "status": 401, "request_id": "abc-1"}
    assert "something" not in json.dumps(record.__dict__, default=str)
