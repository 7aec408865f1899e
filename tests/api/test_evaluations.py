"""Evaluations over the API and from the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.client import Client
from api.state import State
from jobs.keys import create_key
from jobs.models import Alias, Draft, Evaluation, Job
from jobs.states import JobStatus
from tests.api.conftest import NOW, PEPPER, Ran, problem_of

PATH = "/v1/drafts/dft_01test/evaluations"
pytestmark = pytest.mark.usefixtures("succeeded")


def add_candidate(state: State, job_id: str) -> None:
    """Another draft beside the champion, of a job of its own."""
    with state.db.write() as session:
        champion = session.get_one(Draft, "dft_01test")
        columns = {c.key: getattr(champion, c.key) for c in Draft.__table__.columns}
        changes = {"id": "dft_02test", "job_id": job_id, "alias": "candidate"}
        session.add(Draft(**{**columns, **changes}))


def test_the_drafts_own_job_is_measured_again(web: TestClient) -> None:
    answer = web.post(PATH, json={}, headers={"idempotency-key": "a"})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert [s["name"] for s in job["stages"]] == ["resolve", "prepare", "probe"]
    assert job["spec"]["evaluate"]["draft"] == "dft_01test"
    assert job["target"] == "demo"
    assert job["labels"] == {}
    again = web.post(PATH, json={}, headers={"idempotency-key": "a"})
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == job["id"]
    listed = web.get(PATH).json()
    assert [(e["job_id"], e["job_status"]) for e in listed["data"]] == [(job["id"], "queued")]
    assert listed["data"][0]["result"] is None


def test_a_repeat_is_one_whatever_names_have_come_to_mean(
    web: TestClient, state: State, client: Client
) -> None:
    add_candidate(state, client.submit({"target": "demo", "recipe": "quick"})[0].id)
    path, headers = "/v1/drafts/eagle3--demo/evaluations", {"idempotency-key": "a"}
    body = {"against": "dft_02test"}
    job = web.post(path, json=body, headers=headers).json()
    assert job["spec"]["evaluate"]["draft"] == "dft_01test"
    with state.db.write() as session:
        session.get_one(Draft, "dft_01test").alias = Alias.PREVIOUS
        session.flush()
        session.get_one(Draft, "dft_02test").alias = Alias.CHAMPION
    again = web.post(path, json={"count": 16, **body}, headers=headers)
    assert again.headers["idempotent-replayed"] == "true", again.text
    assert again.json()["id"] == job["id"]
    problem_of(web.post(path, json={"count": 17, **body}, headers=headers), 422)
    problem_of(web.post(PATH, json=body, headers=headers), 422)
    made = web.post(path, json={}).json()
    assert made["spec"]["evaluate"]["draft"] == "dft_02test"


def test_target_prompts_and_gates_may_be_others(web: TestClient) -> None:
    body = {
        "target": "acme/model@4f2a91", "count": 50, "gates": {"min_tau": 1.3},
        "prompts": {"source": "demo", "limit": 200},
    }  # fmt: skip
    spec = web.post(PATH, json=body).json()["spec"]
    assert spec["target"] == "acme/model@4f2a91"
    assert spec["prompts"]["limit"] == 200
    assert spec["gates"]["min_tau"] == 1.3
    assert spec["evaluate"]["count"] == 50


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"against": "champion"}, "#/against"),
        ({"against": "dft_nope"}, "#/against"),
        ({"target": "no good"}, "#/target"),
        ({"gates": {"min_tau": 0}}, "#/gates/min_tau"),
        ({"count": 1}, "#/count"),
    ],
)
def test_what_is_wrong_is_said_by_field(web: TestClient, body: Any, pointer: str) -> None:
    problem = problem_of(web.post(PATH, json=body), 422)
    assert [e["pointer"] for e in problem["errors"]] == [pointer]
    problem_of(web.post("/v1/drafts/dft_nope/evaluations", json={}), 404)
    problem_of(web.get("/v1/drafts/dft_nope/evaluations"), 404)


def test_pages_of_them(web: TestClient) -> None:
    jobs = [web.post(PATH, json={}).json()["id"] for _ in range(3)]
    first = web.get(PATH, params={"limit": 2}).json()
    assert first["has_more"]
    rest = web.get(PATH, params={"limit": 2, "after": first["next"]}).json()
    assert [e["job_id"] for e in first["data"] + rest["data"]] == jobs[::-1]
    assert rest["next"] is None


def test_a_job_is_one_thing(web: TestClient) -> None:
    body = {"target": "demo", "attach": {}, "evaluate": {"draft": "dft_01test"}}
    assert "leave one" in problem_of(web.post("/v1/jobs", json=body), 422)["errors"][0]["detail"]
    body = {"target": "demo", "evaluate": {"draft": "dft_nope"}}
    problem = problem_of(web.post("/v1/jobs", json=body), 422)
    assert problem["errors"][0]["pointer"] == "#/evaluate/draft"


def test_scopes_and_others_drafts(full_web: TestClient) -> None:
    state: State = full_web.app.state.updraft  # type: ignore[attr-defined]
    with state.db.write() as session:
        made = {
            scope: create_key(session, scope, [scope], pepper=PEPPER, now=NOW)[1]
            for scope in ("jobs:write", "drafts:read")
        }
    can = {s: {"authorization": f"Bearer {key}"} for s, key in made.items()}
    problem_of(full_web.post(PATH, json={}, headers=can["drafts:read"]), 403)
    problem_of(full_web.get(PATH, headers=can["jobs:write"]), 403)
    problem_of(full_web.post(PATH, json={}, headers=can["jobs:write"]), 404)
    problem_of(full_web.get(PATH, headers=can["drafts:read"]), 404)


def test_no_draft_of_another_owner_is_measured(full_web: TestClient, client: Client) -> None:
    """Not by its id, which is like that of none, and not as champion of a shared name."""
    state: State = full_web.app.state.updraft  # type: ignore[attr-defined]
    spare = client.submit({"target": "demo", "recipe": "quick"})[0].id
    add_candidate(state, spare)
    with state.db.write() as session:
        row, key = create_key(session, "k", ["jobs:write"], pepper=PEPPER, now=NOW)
        session.get_one(Draft, "dft_02test").owner = row.id
    own = {"authorization": f"Bearer {key}"}
    said = {}
    for against in ("dft_01test", "dft_nope", "champion", "eagle3--demo@champion"):
        path = "/v1/drafts/dft_02test/evaluations"
        problem = problem_of(full_web.post(path, json={"against": against}, headers=own), 422)
        said[against] = problem["errors"][0]["detail"].replace(against, "")
    assert said["dft_01test"] == said["dft_nope"]
    assert "dft_01test" not in said["champion"]
    for field in ("draft", "against"):
        body = {"target": "demo", "evaluate": {"draft": "dft_02test", field: "dft_01test"}}
        problem = problem_of(full_web.post("/v1/jobs", json=body, headers=own), 422)
        assert problem["errors"][0]["pointer"] == f"#/evaluate/{field}"


def one(name: str, tau: float) -> dict[str, Any]:
    return {
        "draft_id": name, "fits": True, "tau": tau, "tau_ci": [tau - 0.1, tau + 0.1],
        "speedup": 1.2, "lossless": True, "compared_tokens": 640,
    }  # fmt: skip


@pytest.mark.parametrize(("said", "code"), [("better", 0), ("worse", 7)])
def test_the_command_waits_and_says_which_is_better(
    state: State,
    client: Client,
    run: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    code: int,
) -> None:
    spare = client.submit({"target": "demo", "recipe": "quick"})[0].id
    add_candidate(state, spare)
    job, _ = client.evaluate("dft_02test", against="champion")
    assert job.spec["evaluate"]["against"] == "dft_01test"
    other = {
        **one("dft_01test", 1.4), "comparison": said, "tau_gain": 0.2, "tau_gain_ci": [0.1, 0.3],
    }  # fmt: skip
    check = {"name": "against", "required": "no_worse", "measured": said, "passed": said != "worse"}
    gates = {"passed": said != "worse", "checks": [check]}
    result = {**one("dft_02test", 1.6), "against": other, "gates": gates}
    with state.db.write() as session:
        values = {"status": JobStatus.SUCCEEDED, "result": result, "finished_at": NOW}
        session.execute(update(Job).where(Job.id == job.id).values(**values))
        session.execute(update(Evaluation).values(result=result, finished_at=NOW))
    monkeypatch.setattr(Client, "evaluate", lambda *_, **__: (client.job(job.id), False))
    ran = run("evaluate", "dft_02test", "--against", "champion", "--wait")
    assert ran.code == code, ran.err
    assert f"dft_02test is {said}: acceptance length +0.20 (+0.10 to +0.30)" in ran.out
    [found] = client.evaluations("dft_02test").data
    assert found.result == result
    assert client.evaluations("dft_01test").data == []


def test_a_draft_by_its_target_and_a_key(run: Callable[..., Ran]) -> None:
    first = run("evaluate", "dft_01test", "--idempotency-key", "a")
    again = run("evaluate", "dft_01test", "--idempotency-key", "a")
    assert first.out == again.out
    assert "is the job with this idempotency key" in again.err
    missing = run("evaluate", "acme/none")
    assert missing.code == 2
    assert "no draft (champion or candidate) of a target or model named 'acme/none'" in missing.err


def test_options_that_need_the_end(run: Callable[..., Ran]) -> None:
    assert run("evaluate", "dft_01test", "--timeout", "3").code == 2
    assert run("evaluate", "dft_01test").out.startswith("job_")
