from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.state import State
from jobs import tally
from jobs.ids import utcnow
from tests.api.conftest import problem_of


def test_request_ids_are_echoed_or_made(web: TestClient) -> None:
    assert web.get("/livez", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = web.get("/livez", headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
    assert made.startswith("req_")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "169.254.1.1:8300", "", "["]
)
def test_embedded_mode_answers_to_loopback_names_only(web: TestClient, host: str) -> None:
    problem_of(web.get("/v1/jobs", headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["localhost:8300", "127.0.0.1", "[::1]:8300"])
def test_loopback_names(web: TestClient, host: str) -> None:
    assert web.get("/v1/jobs", headers={"host": host}).status_code == 200


def test_a_foreign_page_changes_nothing(web: TestClient, queued: str) -> None:
    path = f"/v1/jobs/{queued}/cancel"
    problem_of(web.post(path, headers={"origin": "http://evil.example"}), 403)
    problem_of(web.post(path, headers={"origin": "null"}), 403)
    problem_of(web.post(path, headers={"origin": "http://["}), 403)
    assert web.post(path, headers={"origin": "http://127.0.0.1:8300"}).status_code == 200


def test_a_form_cannot_submit(web: TestClient) -> None:
    answer = web.post(
        "/v1/jobs", content=b'{"target":"demo"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code in (415, 422)
    assert web.get("/v1/jobs").json()["data"] == []


def test_a_huge_body_is_refused(web: TestClient) -> None:
    problem_of(web.post("/v1/jobs", content=b" " * (1 << 20) + b"{}"), 413)


def test_unknown_paths_and_methods(web: TestClient) -> None:
    problem_of(web.get("/v2/jobs"), 404)
    problem_of(web.delete("/v1/jobs"), 405)


def test_an_unexpected_error_tells_its_id_and_nothing_else(web: TestClient) -> None:
    def boom() -> None:
        raise RuntimeError("a secret detail")

    web.app.add_api_route("/boom", boom)  # type: ignore[attr-defined]
    assert "secret" not in str(problem_of(web.get("/boom"), 500))


def test_ready_names_what_is_not(web: TestClient, state: State) -> None:
    with state.db.write() as session:
        tally.sign(session, tally.RELAY, utcnow())
    assert web.get("/readyz").json() == {
        "status": "ok",
        "checks": {"db": "ok", "store": "ok", "broker": "ok", "relay": "ok"},
    }
    with state.db.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE stages")
        connection.exec_driver_sql("ALTER TABLE jobs RENAME TO gone")
    answer = web.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["store"] == "ok"
    assert "migrated" in answer.json()["checks"]["db"]


def test_without_a_relay_it_is_degraded(web: TestClient, state: State) -> None:
    answer = web.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    with state.db.write() as session:
        tally.sign(session, tally.RELAY, utcnow() - timedelta(hours=1))
    assert "the last sweep was 3600 s ago" in web.get("/readyz").json()["checks"]["relay"]


def test_the_page_is_self_contained(web: TestClient) -> None:
    answer = web.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    html = answer.text
    assert "//" not in html.replace("://", "").split("<script>")[0]
    for foreign in ("http://", "https://", " src=", "@import", "style="):
        assert foreign not in html


def test_the_page_ships_with_the_package() -> None:
    assert (Path(__file__).parents[2] / "api" / "page.html").is_file()
