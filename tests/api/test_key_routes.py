"""Keys over the API: made, shown once, rotated, revoked; their usage and their limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from api.limits import Limiter
from jobs.errors import RateLimited
from jobs.ids import utcnow
from jobs.keys import SCOPES, create_key
from jobs.models import ApiKey
from tests.api.conftest import PEPPER, problem_of

QUICK = {"target": "demo", "recipe": "quick"}
Headers = dict[str, str]


@pytest.fixture
def admin(full_web: TestClient) -> Headers:
    with full_web.app.state.updraft.db.write() as session:  # type: ignore[attr-defined]
        _, token = create_key(session, "root", ["admin"], pepper=PEPPER, now=utcnow())
    return {"authorization": f"Bearer {token}"}


def _make(web: TestClient, admin: Headers, **body: Any) -> tuple[str, Headers]:
    made = web.post("/v1/api-keys", json={"name": "ci", **body}, headers=admin)
    assert made.status_code == 201, made.text
    return made.json()["id"], {"authorization": f"Bearer {made.json()['key']}"}


def test_a_key_is_shown_once(full_web: TestClient, admin: Headers) -> None:
    key_id, headers = _make(full_web, admin, days=3)
    token = headers["authorization"].removeprefix("Bearer ")
    seen = full_web.get(f"/v1/api-keys/{key_id}", headers=admin)
    assert seen.json()["hint"] == token[:10]
    assert token not in seen.text + full_web.get("/v1/api-keys", headers=admin).text
    with full_web.app.state.updraft.db.read() as session:  # type: ignore[attr-defined]
        assert token not in str(vars(session.get(ApiKey, key_id)))


def test_a_key_may_have_every_scope(full_web: TestClient, admin: Headers) -> None:
    key_id, _ = _make(full_web, admin, scopes=list(SCOPES))
    seen = full_web.get(f"/v1/api-keys/{key_id}", headers=admin).json()
    assert seen["scopes"] == sorted(SCOPES)


def test_only_administrators_make_keys(full_web: TestClient, admin: Headers) -> None:
    _, headers = _make(full_web, admin, scopes=["jobs:read", "jobs:write", "drafts:promote"])
    problem_of(full_web.get("/v1/api-keys", headers=headers), 403)
    key = {"name": "x", "scopes": ["admin"]}
    problem_of(full_web.post("/v1/api-keys", json=key, headers=headers), 403)
    hook = {"url": "https://ci.example.com", "all_owners": True}
    problem_of(full_web.post("/v1/webhook-endpoints", json=hook, headers=headers), 403)


def test_a_rotated_key_sees_the_same_jobs_and_the_former_one_ends(
    full_web: TestClient, admin: Headers
) -> None:
    key_id, former = _make(full_web, admin)
    job = full_web.post("/v1/jobs", json=QUICK, headers=former).json()["id"]
    path = f"/v1/api-keys/{key_id}/rotate"
    made = full_web.post(path, json={"overlap_hours": 1}, headers=admin).json()
    new = {"authorization": f"Bearer {made['key']}"}
    for headers in (former, new):
        assert full_web.get(f"/v1/jobs/{job}", headers=headers).status_code == 200
    full_web.post(path, json={"overlap_hours": 0}, headers=admin)
    problem_of(full_web.get(f"/v1/jobs/{job}", headers=former), 401)
    problem_of(full_web.post(path, headers=admin), 409)


def test_a_revoked_key_is_of_no_use(full_web: TestClient, admin: Headers) -> None:
    key_id, headers = _make(full_web, admin)
    assert full_web.delete(f"/v1/api-keys/{key_id}", headers=admin).json()["revoked_at"]
    problem_of(full_web.get("/v1/jobs", headers=headers), 401)
    problem_of(full_web.delete("/v1/api-keys/key_no", headers=admin), 404)


def test_a_programs_key_must_name_what_it_submits(full_web: TestClient, admin: Headers) -> None:
    _, headers = _make(full_web, admin, idempotency_required=True)
    problem = problem_of(full_web.post("/v1/jobs", json=QUICK, headers=headers), 400)
    assert problem["type"].endswith("idempotency-key-missing")
    named = {**headers, "idempotency-key": "attach-1"}
    assert full_web.post("/v1/jobs", json=QUICK, headers=named).status_code == 202


def test_webhooks_and_drafts_of_others_do_not_exist(full_web: TestClient, admin: Headers) -> None:
    _, mine = _make(full_web, admin)
    _, theirs = _make(full_web, admin)
    body = {"url": "https://ci.example.com"}
    made = full_web.post("/v1/webhook-endpoints", json=body, headers=mine).json()["id"]
    path = f"/v1/webhook-endpoints/{made}"
    for tail in ("", "/deliveries", "/deliveries/msg_x"):
        problem_of(full_web.get(path + tail, headers=theirs), 404)
    for tail in ("/test", "/rotate-secret", "/deliveries/msg_x/redeliver"):
        problem_of(full_web.post(path + tail, headers=theirs), 404)
    problem_of(full_web.delete(path, headers=theirs), 404)
    assert full_web.get("/v1/webhook-endpoints", headers=theirs).json()["data"] == []
    assert full_web.get(path, headers=admin).status_code == 200


def test_jobs_of_others_cannot_be_steered(full_web: TestClient, admin: Headers) -> None:
    _, mine = _make(full_web, admin)
    _, theirs = _make(full_web, admin)
    job = full_web.post("/v1/jobs", json=QUICK, headers=mine).json()["id"]
    for action in ("retry", "pause", "resume", "cancel"):
        problem_of(full_web.post(f"/v1/jobs/{job}/{action}", headers=theirs), 404)
        stale = {**theirs, "if-match": '"x"'}
        problem_of(full_web.post(f"/v1/jobs/{job}/{action}", headers=stale), 404)
    for tail in ("metrics", "checkpoints", "logs", "artifacts"):
        problem_of(full_web.get(f"/v1/jobs/{job}/{tail}", headers=theirs), 404)


def test_usage_is_ones_own(full_web: TestClient, admin: Headers) -> None:
    _, mine = _make(full_web, admin)
    full_web.post("/v1/jobs", json=QUICK, headers=mine)
    body = full_web.get("/v1/usage", headers=mine).json()
    assert (body["jobs"], body["limits"]["max_active"]) == ({"queued": 1}, 1000)
    assert full_web.get("/v1/usage", headers=admin).json()["jobs"] == {}


def test_embedded_mode_makes_no_keys(web: TestClient) -> None:
    assert web.get("/v1/api-keys").json()["data"] == []
    problem_of(web.post("/v1/api-keys", json={"name": "x"}), 409)


def test_who_asks_too_often_waits(full_web: TestClient, admin: Headers) -> None:
    limiter = full_web.app.state.updraft.limiter  # type: ignore[attr-defined]
    limiter.clock, limiter.rate, limiter.size = (lambda: 0.0), 0.5, 2.0
    answers = [full_web.get("/v1/jobs", headers=admin) for _ in range(3)]
    left = [answer.headers["ratelimit-remaining"] for answer in answers]
    assert (left, answers[0].headers["ratelimit-limit"]) == (["1", "0", "0"], "2")
    assert problem_of(answers[2], 429)["type"].endswith("rate-limited")
    assert answers[2].headers["retry-after"] == "2"


def test_buckets_fill_again_and_are_ones_own() -> None:
    now = [0.0]
    limiter = Limiter(1.0, lambda: now[0])
    request = cast(Request, SimpleNamespace(state=SimpleNamespace()))
    for _ in range(2):
        limiter.take(request, "a")
    with pytest.raises(RateLimited):
        limiter.take(request, "a")
    limiter.take(request, "b")
    now[0] = 1.0
    limiter.take(request, "a")
