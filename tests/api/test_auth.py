from __future__ import annotations

from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from jobs.ids import utcnow
from jobs.keys import create_key, revoke_key
from tests.api.conftest import PEPPER, problem_of

QUICK = {"target": "demo", "recipe": "quick"}


def _key(web: TestClient, *scopes: str, days: int | None = None) -> tuple[str, dict[str, str]]:
    now = utcnow()
    expires = now + timedelta(days=days) if days else None
    with web.app.state.updraft.db.write() as session:  # type: ignore[attr-defined]
        row, token = create_key(session, "t", scopes, pepper=PEPPER, now=now, expires_at=expires)
    return row.id, {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("sent", [None, "Bearer nonsense", "Bearer upd_" + "a" * 46, "Basic YTpi"])
def test_no_valid_key_no_answer(full_web: TestClient, sent: str | None) -> None:
    headers = {"authorization": sent} if sent else {}
    for path in ("/v1/jobs", "/v1/jobs/job_x", "/v1/jobs/job_x/events", "/v1/drafts"):
        answer = full_web.get(path, headers=headers)
        problem_of(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_probes_and_page_need_no_key(full_web: TestClient) -> None:
    assert full_web.get("/livez").status_code == 200
    assert full_web.get("/").status_code == 200
    assert full_web.get("/openapi.json").status_code == 200


def test_a_key_does_what_its_scopes_say(full_web: TestClient) -> None:
    _, reader = _key(full_web, "jobs:read")
    assert full_web.get("/v1/jobs", headers=reader).status_code == 200
    answer = full_web.post("/v1/jobs", json=QUICK, headers=reader)
    assert "jobs:write" in problem_of(answer, 403)["detail"]
    problem_of(full_web.get("/v1/drafts", headers=reader), 403)


def test_jobs_of_others_do_not_exist(full_web: TestClient) -> None:
    owner, mine = _key(full_web, "jobs:read", "jobs:write")
    _, theirs = _key(full_web, "jobs:read", "jobs:write")
    _, admin = _key(full_web, "admin")
    job = full_web.post("/v1/jobs", json=QUICK, headers=mine).json()["id"]
    for path in ("", "/events", "/events/stream", "/artifacts/x"):
        problem_of(full_web.get(f"/v1/jobs/{job}{path}", headers=theirs), 404)
    problem_of(full_web.post(f"/v1/jobs/{job}/cancel", headers=theirs), 404)
    assert full_web.get("/v1/jobs", headers=theirs).json()["data"] == []
    assert full_web.get(f"/v1/jobs/{job}", headers=mine).status_code == 200
    assert full_web.get(f"/v1/jobs/{job}", headers=admin).status_code == 200
    assert owner.startswith("key_")


def test_drafts_of_others_are_nothing_to_go_on_from(full_web: TestClient) -> None:
    _, mine = _key(full_web, "jobs:write")
    _, theirs = _key(full_web, "jobs:write")
    job = full_web.post("/v1/jobs", json=QUICK, headers=mine).json()["id"]
    body = {**QUICK, "overrides": {"train": {"start_from": f"draft:{job}"}}}
    for route in ("/v1/jobs", "/v1/jobs:validate"):
        for headers, detail in ((mine, "is queued and has registered no"), (theirs, "no draft '")):
            problem = problem_of(full_web.post(route, json=body, headers=headers), 422)
            assert problem["errors"][0]["pointer"] == "#/overrides/train/start_from"
            assert detail in problem["errors"][0]["detail"]


def test_idempotency_keys_are_per_owner(full_web: TestClient) -> None:
    _, one = _key(full_web, "jobs:write")
    _, two = _key(full_web, "jobs:write")
    jobs = {
        full_web.post("/v1/jobs", json=QUICK, headers={**h, "idempotency-key": "k"}).json()["id"]
        for h in (one, two, one)
    }
    assert len(jobs) == 2


def test_a_revoked_key_is_no_key(full_web: TestClient) -> None:
    key_id, headers = _key(full_web, "jobs:read", days=1)
    assert full_web.get("/v1/jobs", headers=headers).status_code == 200
    with full_web.app.state.updraft.db.write() as session:  # type: ignore[attr-defined]
        revoke_key(session, key_id, now=utcnow())
    problem_of(full_web.get("/v1/jobs", headers=headers), 401)


def test_full_mode_refuses_local_paths_outside_its_roots(full_web: TestClient) -> None:
    _, headers = _key(full_web, "jobs:write")
    answer = full_web.post("/v1/jobs", json={"target": "file:///etc"}, headers=headers)
    assert problem_of(answer, 422)["errors"][0]["pointer"] == "#/target"
