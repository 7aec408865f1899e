from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api.state import State
from jobs import service
from tests.api.conftest import NOW, problem_of

QUICK = {"target": "demo", "recipe": "quick"}


def test_submission_is_accepted_and_located(web: TestClient) -> None:
    answer = web.post("/v1/jobs", json=QUICK)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) > 0
    assert job["status"] == "queued"
    assert [s["name"] for s in job["stages"]] == list(service.ALL_STAGES)
    assert web.get(answer.headers["location"]).json()["spec"]["gates"]["lossless"] is True


def test_same_key_and_body_is_the_same_job(web: TestClient) -> None:
    headers = {"idempotency-key": "ci-1"}
    first = web.post("/v1/jobs", json=QUICK, headers=headers)
    again = web.post("/v1/jobs", json={**QUICK, "overrides": {}}, headers=headers)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    other = web.post("/v1/jobs", json={"target": "demo"}, headers=headers)
    assert problem_of(other, 422)["type"].endswith(":idempotency-mismatch")
    assert len(web.get("/v1/jobs").json()["data"]) == 1


def test_a_refused_job_uses_up_no_key(web: TestClient) -> None:
    headers = {"idempotency-key": "ci-1"}
    problem_of(web.post("/v1/jobs", json={"target": "nope"}, headers=headers), 422)
    assert web.post("/v1/jobs", json=QUICK, headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/target"),
        ({"target": "../etc/passwd"}, "#/target"),
        ({**QUICK, "colour": "red"}, "#/colour"),
        ({"target": "demo", "recipe": "nope"}, "#/recipe"),
        ({**QUICK, "overrides": {"train": {"epoch": 1}}}, "#/overrides/train/epoch"),
        ({**QUICK, "gates": {"min_tau": 0.5}}, "#/gates/min_tau"),
        ({"target": "s3://bucket/model"}, "#/target"),
        ([], "#"),
    ],
)
def test_a_wrong_field_is_named(web: TestClient, body: object, pointer: str) -> None:
    for path in ("/v1/jobs", "/v1/jobs:validate"):
        found = problem_of(web.post(path, json=body), 422)
        assert pointer in [e["pointer"] for e in found["errors"]], found
        assert all(e["detail"] for e in found["errors"])
    assert web.get("/v1/jobs").json()["data"] == []


def test_what_is_not_json_is_malformed(web: TestClient) -> None:
    headers = {"content-type": "application/json"}
    problem_of(web.post("/v1/jobs", content=b"{", headers=headers), 400)


def test_validation_stores_nothing(web: TestClient) -> None:
    answer = web.post("/v1/jobs:validate", json={**QUICK, "overrides": {"train": {"epochs": 1}}})
    assert answer.status_code == 200
    assert answer.json()["recipe"]["train"]["epochs"] == 1
    assert web.get("/v1/jobs").json()["data"] == []


def test_pages_follow_each_other(web: TestClient) -> None:
    ids = [web.post("/v1/jobs", json=QUICK).json()["id"] for _ in range(5)]
    seen, after = [], ""
    while True:
        page = web.get("/v1/jobs", params={"limit": 2, **({"after": after} if after else {})})
        seen += [job["id"] for job in page.json()["data"]]
        after = page.json()["next"]
        if not page.json()["has_more"]:
            break
    assert sorted(seen) == sorted(ids)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("status=queued", 1),
        ("status=failed", 0),
        ("base_model=demo", 1),
        ("base_model=acme/other", 0),
        ("label.team=a", 1),
        ("label.team=b", 0),
    ],
)
def test_filters(web: TestClient, queued: str, query: str, count: int) -> None:
    assert len(web.get(f"/v1/jobs?{query}").json()["data"]) == count


@pytest.mark.parametrize(
    "query", ["statu=queued", "status=sleeping", "limit=0", "limit=101", "label.%00=x"]
)
def test_a_filter_that_does_not_exist_is_refused(web: TestClient, query: str) -> None:
    assert problem_of(web.get(f"/v1/jobs?{query}"), 422)["errors"][0]["pointer"].startswith("query")


def test_unchanged_job_is_not_sent_again(web: TestClient, state: State, training: str) -> None:
    path = f"/v1/jobs/{training}"
    first = web.get(path)
    assert first.json()["stages"][4]["progress"]["metrics"]["train/loss"] == 2.31
    same = web.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    with state.db.write() as session:
        stage = service.get_job(session, training).stages[4]
        stage.progress = {**(stage.progress or {}), "done": 121}
    moved = web.get(path, headers={"if-none-match": first.headers["etag"]})
    assert moved.json()["stages"][4]["progress"]["done"] == 121


def test_cancel_is_idempotent_and_final(web: TestClient, queued: str) -> None:
    first = web.post(f"/v1/jobs/{queued}/cancel")
    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    assert web.post(f"/v1/jobs/{queued}/cancel").status_code == 200


def test_a_running_job_is_asked_to_stop(web: TestClient, training: str) -> None:
    answer = web.post(f"/v1/jobs/{training}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "cancelling")


def test_an_ended_job_cannot_be_cancelled(web: TestClient, succeeded: str) -> None:
    problem_of(web.post(f"/v1/jobs/{succeeded}/cancel"), 409)


def test_unknown_job(web: TestClient) -> None:
    for path in ("", "/events", "/events/stream", "/artifacts/report.md"):
        problem_of(web.get(f"/v1/jobs/job_nope{path}"), 404)
    problem_of(web.post("/v1/jobs/job_nope/cancel"), 404)


def test_artifacts(web: TestClient, succeeded: str) -> None:
    job = web.get(f"/v1/jobs/{succeeded}").json()
    assert job["artifacts"] == ["report.html", "report.md"]
    assert "artifacts" not in job["result"]
    page = web.get(f"/v1/jobs/{succeeded}/artifacts/report.html")
    assert page.text == "<h1>Report</h1>"
    assert "sandbox" in page.headers["content-security-policy"]
    missing = problem_of(web.get(f"/v1/jobs/{succeeded}/artifacts/x"), 404)
    assert "report.html" in missing["detail"]


def test_the_job_id_sorts_by_time(web: TestClient, queued: str) -> None:
    newer = web.post("/v1/jobs", json=QUICK).json()
    assert newer["id"] > queued
    assert newer["created_at"] > NOW.isoformat()
