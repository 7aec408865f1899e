from __future__ import annotations

import json

from fastapi.testclient import TestClient

from api.state import State
from jobs.events import append_event
from tests.api.conftest import NOW, problem_of


def _frames(text: str) -> list[dict[str, str]]:
    """Server-sent events as fields, comments left out."""
    frames = []
    for block in text.strip().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        frames.append(dict(line.split(": ", 1) for line in lines))
    return [frame for frame in frames if frame]


def test_events_are_paged_without_gaps(web: TestClient, state: State, queued: str) -> None:
    with state.db.write() as session:
        for i in range(4):
            append_event(session, queued, "log", f"line {i}", now=NOW)
    first = web.get(f"/v1/jobs/{queued}/events?limit=3").json()
    assert [e["seq"] for e in first["data"]] == [1, 2, 3]
    assert first["has_more"] is True
    rest = web.get(f"/v1/jobs/{queued}/events?after=3").json()
    assert [e["message"] for e in rest["data"]] == ["line 2", "line 3"]
    assert rest["has_more"] is False


def test_stream_ends_after_the_last_event(web: TestClient, succeeded: str) -> None:
    answer = web.get(f"/v1/jobs/{succeeded}/events/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = _frames(answer.text)
    assert [f["id"] for f in frames] == ["1", "2"]
    assert frames[-1]["event"] == "job.succeeded"
    assert json.loads(frames[-1]["data"])["seq"] == 2


def test_stream_resumes_after_an_id(web: TestClient, succeeded: str) -> None:
    path = f"/v1/jobs/{succeeded}/events/stream"
    assert [f["id"] for f in _frames(web.get(path, headers={"last-event-id": "1"}).text)] == ["2"]
    assert _frames(web.get(path, headers={"last-event-id": "2"}).text) == []


def test_a_wrong_last_event_id_is_refused(web: TestClient, succeeded: str) -> None:
    path = f"/v1/jobs/{succeeded}/events/stream"
    found = problem_of(web.get(path, headers={"last-event-id": "x"}), 422)
    assert found["errors"][0]["pointer"] == "header/last-event-id"


def test_a_number_that_no_event_can_have_is_refused(web: TestClient, queued: str) -> None:
    path, number = f"/v1/jobs/{queued}/events", "9" * 20
    problem_of(web.get(f"{path}?after={number}"), 422)
    problem_of(web.get(f"{path}/stream", headers={"last-event-id": number}), 422)


def test_a_message_holds_no_secret(web: TestClient, state: State, queued: str) -> None:
    with state.db.write() as session:
        append_event(session, queued, "log", "no answer from https://me:pass@mlflow", now=NOW)
    assert "pass" not in web.get(f"/v1/jobs/{queued}/events").text
