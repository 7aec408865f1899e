"""Hub tokens of keys: written, never read."""

from __future__ import annotations

import logging

import pytest
from fastapi.testclient import TestClient

from jobs.keys import create_key
from jobs.models import ApiKey
from tests.api.conftest import NOW, PEPPER, problem_of

TOKEN = "hf_abcdefgh12345678"
Headers = dict[str, str]


def key(web: TestClient, *scopes: str) -> tuple[str, Headers]:
    with web.app.state.updraft.db.write() as session:  # type: ignore[attr-defined]
        row, token = create_key(session, "k", scopes, pepper=PEPPER, now=NOW)
        return row.id, {"authorization": f"Bearer {token}"}


def test_it_is_in_no_answer_and_no_log(
    full_web: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key_id, own = key(full_web, "jobs:write")
    _, admin = key(full_web, "admin")
    answer = full_web.put(f"/v1/api-keys/{key_id}/hub-token", json={"token": TOKEN}, headers=own)
    assert answer.status_code == 200
    assert answer.json()["hub_token_at"] is not None
    rotated = full_web.post(f"/v1/api-keys/{key_id}/rotate", headers=admin)
    listed = full_web.get("/v1/api-keys", headers=admin)
    assert rotated.json()["hub_token_at"] == answer.json()["hub_token_at"]
    with full_web.app.state.updraft.db.read() as session:  # type: ignore[attr-defined]
        assert session.get(ApiKey, key_id).hub_token is None
        stored = session.get(ApiKey, rotated.json()["id"]).hub_token
    for text in (answer.text, rotated.text, listed.text, caplog.text, stored):
        assert TOKEN not in text
    assert stored not in answer.text + rotated.text + listed.text
    gone = full_web.delete(f"/v1/api-keys/{key_id}/hub-token", headers=own)
    assert gone.json()["hub_token_at"] is None
    after = full_web.get("/v1/api-keys", headers=admin).json()["data"]
    assert {one["hub_token_at"] for one in after} == {None}, "of the key that it went over to, too"
    full_web.delete(f"/v1/api-keys/{key_id}", headers=admin)
    refused = full_web.put(f"/v1/api-keys/{key_id}/hub-token", json={"token": TOKEN}, headers=admin)
    problem_of(refused, 409)


@pytest.mark.parametrize("token", ["sesame", "hf_short", "hf_abcdefgh 1234", "hf_" + "a" * 300])
def test_what_is_refused_is_not_repeated(full_web: TestClient, token: str) -> None:
    key_id, own = key(full_web, "jobs:write")
    answer = full_web.put(f"/v1/api-keys/{key_id}/hub-token", json={"token": token}, headers=own)
    problem = problem_of(answer, 422)
    assert problem["errors"][0]["pointer"] == "#/token"
    assert token not in answer.text


def test_only_ones_own_and_administrators_all(full_web: TestClient, web: TestClient) -> None:
    key_id, own = key(full_web, "jobs:write")
    _, other = key(full_web, "jobs:write")
    _, reader = key(full_web, "jobs:read")
    _, admin = key(full_web, "admin")
    path, body = f"/v1/api-keys/{key_id}/hub-token", {"token": TOKEN}
    problem_of(full_web.put(path, json=body, headers=other), 404)
    problem_of(full_web.delete(path, headers=other), 404)
    problem_of(full_web.put(path, json=body, headers=reader), 403)
    assert full_web.put(path, json=body, headers=admin).status_code == 200
    assert full_web.put(path, json=body, headers=own).status_code == 200
    problem_of(web.put(path, json=body), 409)
