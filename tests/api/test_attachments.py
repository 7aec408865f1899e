"""Attachments and observations over the API, and the command of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from api.client import Client
from api.state import State
from jobs.attach_decision import Check, Decision, Tried
from jobs.attach_policy import Mode
from jobs.models import Attachment, Job
from jobs.states import JobStatus
from tests.api.conftest import NOW, Ran, problem_of

BODY: dict[str, Any] = {"target": "acme/model@4f2a91", "policy": {"recipe": "quick"}}
ROUNDS = {"source": "pod-1", "rounds": 2000, "accepted": 100}


def test_one_is_made_and_read(web: TestClient) -> None:
    answer = web.post("/v1/attachments", json=BODY, headers={"idempotency-key": "a"})
    assert answer.status_code == 202
    made = answer.json()
    assert made["status"] == "pending"
    assert made["policy"]["attach"]["reuse_above"] == 0.9
    assert answer.headers["location"] == f"/v1/attachments/{made['id']}"
    assert web.get(f"/v1/attachments/{made['id']}").json() == made
    assert web.get(f"/v1/attachments/{made['job_id']}").json() == made
    stages = [s["name"] for s in web.get(f"/v1/jobs/{made['job_id']}").json()["stages"]]
    assert stages[:4] == ["resolve", "prepare", "probe", "regenerate"]
    again = web.post("/v1/attachments", json=BODY, headers={"idempotency-key": "a"})
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == made["id"]


def test_what_is_wrong_with_a_policy_is_said_by_field(web: TestClient) -> None:
    body = {"target": "demo", "policy": {"attach": {"reuse_above": 2}, "recipe": "quick"}}
    problem = problem_of(web.post("/v1/attachments", json=body), 422)
    assert problem["errors"][0]["pointer"].endswith("attach/reuse_above")
    problem_of(web.get("/v1/attachments/att_nope"), 404)


def decided(state: State, client: Client, mode: Mode, status: JobStatus, passed: bool) -> str:
    """An attachment that has ended so."""
    made, _ = client.attach("demo", {"recipe": "quick"})
    tried = Tried(
        id="dft_old", name="eagle3--demo", lineage="of the same registered model", fits=True,
        registered_tau=2.0, tau=1.9, tau_ci=(1.8, 2.0), speedup=1.2, lossless=True, distance=0.01,
        compared_tokens=64,
    )  # fmt: skip
    check = Check(name="min_tau", required=1.5, measured=1.9, passed=passed)
    decision = Decision(
        mode=mode, draft_id="dft_old", why="enough is left", checks=(check,), tried=(tried,)
    )
    result = {"gates": {"passed": passed, "checks": [check.model_dump()]}}
    error = {"reason": "quality_gate", "message": "lossy"}
    with state.db.write() as session:
        row = session.scalars(select(Attachment).where(Attachment.id == made.id)).one()
        row.decision, row.decided_at = decision.model_dump(mode="json"), NOW
        values = {"status": status, "result": result, "finished_at": NOW}
        if status == JobStatus.FAILED:
            values |= {"error": error, "result": None}
        session.execute(update(Job).where(Job.id == made.job_id).values(**values))
    return made.id


@pytest.mark.parametrize(
    ("mode", "status", "passed", "code", "outcome"),
    [
        ("train", JobStatus.SUCCEEDED, True, 0, "attached"),
        ("reuse", JobStatus.SUCCEEDED, True, 10, "attached_by_reuse"),
        ("train", JobStatus.SUCCEEDED, False, 20, "gates_failed"),
        ("train", JobStatus.FAILED, False, 20, "gates_failed"),
        ("train", JobStatus.CANCELLED, False, 51, "cancelled"),
    ],
)
def test_exit_codes_junit_and_summary(
    state: State,
    client: Client,
    run: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mode: Mode,
    status: JobStatus,
    passed: bool,
    code: int,
    outcome: str,
) -> None:
    ended = decided(state, client, mode, status, passed)
    found = client.attachment(ended)
    monkeypatch.setattr(Client, "attach", lambda *_, **__: (found, False))
    junit, page = tmp_path / "out" / "junit.xml", tmp_path / "out.md"
    policy = tmp_path / "policy.yaml"
    policy.write_text("recipe: quick\nattach: {reuse_above: 0.8}\n")
    words = ("--policy", str(policy), "--wait", "--junit", str(junit), "--summary", str(page))
    ran = run("attach", "demo", *words)
    assert ran.code == code, ran.err
    assert found.status == outcome
    suite = Xml.fromstring(junit.read_text())  # noqa: S314 - written a moment ago
    assert suite.get("failures") == str(sum(c.find("failure") is not None for c in suite))
    assert (suite.get("failures") == "0") == (code in (0, 10))
    assert {c.get("name") for c in suite} >= {"attached"}
    text = page.read_text()
    assert "enough is left" in text
    assert "| `dft_old` | of the same registered model | 0.0100 | 1.90 (1.80 to 2.00)" in text


def test_a_service_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from api.cli import app

    monkeypatch.setenv("UPDRAFT_URL", "http://127.0.0.1:9")
    assert CliRunner().invoke(app, ["attach", "demo", "--wait"]).exit_code == 40


def test_options_that_need_the_end(run: Callable[..., Ran]) -> None:
    assert run("attach", "demo", "--junit", "x.xml").code == 2
    assert run("attach", "demo").out.startswith("att_")


@pytest.mark.usefixtures("succeeded")
def test_a_draft_that_drifts_is_marked_once_and_recovers(web: TestClient) -> None:
    path = "/v1/drafts/dft_01test/observations"
    first = web.post(path, json={"source": "pod-1", "rounds": 500, "accepted": 10}).json()
    assert first["verdict"] is None
    second = web.post(path, json=ROUNDS).json()
    assert (second["rounds"], second["accepted"]) == (1500, 90), "since the one before"
    assert second["verdict"]["drifted"]
    drift = web.get("/v1/drafts/dft_01test").json()["drift"]
    assert drift["action"] == "propose"
    assert drift["tau"] == pytest.approx(1.05)
    job = drift["proposal"]["job"]["body"]
    assert job["overrides"]["train"]["start_from"] == "draft:dft_01test"
    assert web.post("/v1/jobs", json=job).status_code == 202
    assert drift["proposal"]["evaluation"]["body"] == {"against": "dft_01test"}
    assert web.post(path, json=ROUNDS).json()["rounds"] == 0
    restarted = {"source": "pod-1", "rounds": 50, "accepted": 49}
    assert web.post(path, json=restarted).json()["rounds"] == 50
    good = {"source": "pod-2", "rounds": 90000, "accepted": 40000}
    assert not web.post(path, json=good).json()["verdict"]["drifted"]
    assert web.get("/v1/drafts/dft_01test").json()["drift"] is None


def test_by_policy_a_job_goes_on_from_it(web: TestClient, state: State, succeeded: str) -> None:
    with state.db.write() as session:
        job = session.get_one(Job, succeeded)
        job.spec = {**job.spec, "attach": {"drift": {"action": "retrain"}}}
    found = web.post("/v1/drafts/dft_01test/observations", json=ROUNDS).json()
    again = web.get(f"/v1/jobs/{found['drift']['job_id']}").json()
    assert again["spec"]["overrides"]["train"]["start_from"] == "draft:dft_01test"
    assert again["labels"]["retrains"] == "dft_01test"
    assert again["spec"]["attach"] is None
    evaluation = found["drift"]["proposal"]["evaluation"]
    assert evaluation["route"] == f"POST /v1/drafts/{again['id']}/evaluations"


@pytest.mark.usefixtures("succeeded")
@pytest.mark.parametrize(
    "changes",
    [
        {"accepted_at": [90, 20]},
        {"accepted_at": [20, 80]},
        {"rounds": -1},
        {"rounds": 1},
    ],
)
def test_counters_that_cannot_be_are_refused(web: TestClient, changes: dict[str, Any]) -> None:
    body = {**ROUNDS, **changes}
    problem_of(web.post("/v1/drafts/dft_01test/observations", json=body), 422)
