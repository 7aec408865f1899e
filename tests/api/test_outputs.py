from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.files import download_url
from api.state import State
from jobs.events import append_event
from jobs.models import Stage
from jobs.series import Point, thin
from tests.api.conftest import NOW, problem_of


def _event(state: State, job: str, type: str, data: dict[str, Any]) -> None:
    with state.db.write() as session:
        append_event(session, job, type, "", now=NOW, data={"stage": "train", **data})


def _metrics(state: State, job: str, *steps: int) -> None:
    points = [
        {"t": (NOW + timedelta(seconds=s)).isoformat(), "step": s, "metrics": {"train/loss": 9 - s}}
        for s in steps
    ]
    data = {"step": steps[-1], "metrics": {"train/loss": 9 - steps[-1]}, "points": points}
    _event(state, job, "metrics", data)


def test_metrics_are_series_over_the_steps(web: TestClient, state: State, training: str) -> None:
    _metrics(state, training, 1, 2)
    _metrics(state, training, 3)
    body = web.get(f"/v1/jobs/{training}/metrics").json()
    (series,) = body["data"]
    assert (series["stage"], series["name"]) == ("train", "train/loss")
    assert [(p["step"], p["value"]) for p in series["points"]] == [(1, 8), (2, 7), (3, 6)]
    assert body["down_sampled"] is False
    assert web.get(f"/v1/jobs/{training}/metrics?name=no").json()["data"] == []


def test_long_series_are_thinned_and_keep_their_end(
    web: TestClient, state: State, training: str
) -> None:
    _metrics(state, training, *range(1, 8))
    body = web.get(f"/v1/jobs/{training}/metrics?points=3").json()
    assert [p["step"] for p in body["data"][0]["points"]] == [2, 4, 7]
    assert body["down_sampled"] is True


def test_very_many_events_are_read_in_strides(
    web: TestClient, state: State, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.series.MOST_EVENTS", 2)
    for step in range(1, 6):
        _metrics(state, training, step)
    body = web.get(f"/v1/jobs/{training}/metrics").json()
    assert [p["step"] for p in body["data"][0]["points"]] == [2, 5]
    assert body["down_sampled"] is True


def test_thin_keeps_short_series_as_they_are() -> None:
    points = [Point(i, 0.0, NOW) for i in range(4)]
    assert thin(points, 4) == points


def test_checkpoints_have_their_metrics_and_the_last_can_be_gone_on_from(
    web: TestClient, state: State, training: str
) -> None:
    _metrics(state, training, 1)
    _event(state, training, "checkpoint", {"step": 1, "path": "c/1", "bytes": 10})
    _metrics(state, training, 2)
    _event(state, training, "checkpoint", {"step": 2, "path": "c/2", "bytes": 12})
    with state.db.write() as session:
        stage = session.query(Stage).filter_by(job_id=training, name="train").one()
        stage.checkpoint = {"step": 2, "path": "c/2", "bytes": 12}
    found = web.get(f"/v1/jobs/{training}/checkpoints").json()["data"]
    assert [(c["step"], c["size"], c["resumable"]) for c in found] == [
        (1, 10, False),
        (2, 12, True),
    ]
    assert [c["metrics"]["train/loss"] for c in found] == [8, 7]


def test_logs_are_listed_and_served(web: TestClient, state: State, training: str) -> None:
    state.store.put_bytes(f"jobs/{training}/logs/train.jsonl", b'{"kind":"log"}\n')
    listed = web.get(f"/v1/jobs/{training}/logs").json()["data"]
    assert listed == [{"name": "train.jsonl"}]
    assert web.get(f"/v1/jobs/{training}/logs/train.jsonl").content == b'{"kind":"log"}\n'
    detail = problem_of(web.get(f"/v1/jobs/{training}/logs/no.jsonl"), 404)["detail"]
    assert "train.jsonl" in detail


def test_a_link_leads_to_the_artifact(web: TestClient, succeeded: str) -> None:
    names = [a["name"] for a in web.get(f"/v1/jobs/{succeeded}/artifacts").json()["data"]]
    assert names == ["report.html", "report.md"]
    link = web.post(f"/v1/jobs/{succeeded}/artifacts/report.md/download-url").json()
    assert link["expires_at"] is None
    assert web.get(link["url"]).text.startswith("# Report")
    problem_of(web.post(f"/v1/jobs/{succeeded}/artifacts/no.md/download-url"), 404)


def test_a_link_of_the_store_says_when_it_ends(state: State, monkeypatch: Any) -> None:
    asked = []

    def presign(key: str, seconds: int) -> str:
        asked.append((key, seconds))
        return "https://store/x?signed"

    monkeypatch.setattr(state.store, "presign", presign, raising=False)
    link = download_url(state.store, "a/b", "/v1/b")
    assert asked == [("a/b", 900)]
    assert link.url == "https://store/x?signed"
    assert link.expires_at is not None


def test_unknown_parameters_are_refused(web: TestClient, training: str) -> None:
    for path in (f"/v1/jobs/{training}/metrics", "/v1/drafts", f"/v1/jobs/{training}/events"):
        errors = problem_of(web.get(f"{path}?nmae=x"), 422)["errors"]
        assert errors[0]["pointer"] == "query/nmae"


def test_outputs_of_a_job_that_is_not_there(web: TestClient) -> None:
    for tail in ("checkpoints", "metrics", "logs", "logs/x", "artifacts", "artifacts/x"):
        problem_of(web.get(f"/v1/jobs/job_no/{tail}"), 404)
