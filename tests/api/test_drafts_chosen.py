"""Promotion, rollback and deprecation, and the keys that may do them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from api.state import State
from jobs import service
from jobs.drafts import add_draft
from jobs.models import Draft, Outbox, OutboxKind
from jobs.spec import parse_spec
from tests.api.conftest import NOW, problem_of


@pytest.fixture
def drafts(state: State) -> list[str]:
    """Three drafts for one target; the first is champion."""
    return [_add(state, n, champion=n == 1) for n in (1, 2, 3)]


def _add(state: State, n: int, *, champion: bool, weights: str = "w") -> str:
    with state.db.write() as session:
        spec = parse_spec({"target": "demo", "recipe": "quick"})
        job = service.submit(session, spec, settings=state.settings, now=NOW).job
        draft = Draft(
            id=f"dft_0{n}", job_id=job.id, owner=job.owner, name="eagle3--demo", target="demo",
            target_resolved="demo@sha256:abc", weights_sha256=weights * 64,
            tokenizer_sha256="t" * 64, template_sha256="m" * 64, capture_layers=[2], metrics={},
            uri=f"drafts/dft_0{n}", manifest_sha256="0" * 64, created_at=NOW,
        )  # fmt: skip
        return add_draft(session, draft, champion=champion, now=NOW).id


def _aliases(web: TestClient) -> dict[str, str]:
    return {d["id"]: d["alias"] for d in web.get("/v1/drafts").json()["data"]}


def _post(web: TestClient, path: str, **options: Any) -> Any:
    return web.post(f"/v1/drafts/{path}", **options)


def test_a_promotion_moves_both_aliases(web: TestClient, state: State, drafts: list[str]) -> None:
    one, two, three = drafts
    body = _post(web, f"{two}/promote").json()
    assert (body["alias"], body["champion"]) == ("champion", two)
    assert _aliases(web) == {one: "previous", two: "champion", three: "candidate"}
    _post(web, f"{three}/promote")
    assert _aliases(web) == {one: "candidate", two: "previous", three: "champion"}
    with state.db.read() as session:
        query = select(Outbox).where(Outbox.kind == OutboxKind.MIRROR).order_by(Outbox.id)
        mirrored = [record.payload["draft_id"] for record in session.scalars(query)]
    assert mirrored == [one, two, three, two, three]


def test_promoting_the_champion_changes_nothing(web: TestClient, drafts: list[str]) -> None:
    before = _aliases(web)
    assert _post(web, f"{drafts[0]}/promote").status_code == 200
    assert _aliases(web) == before


def test_a_rollback_swaps_champion_and_previous(web: TestClient, drafts: list[str]) -> None:
    one, two, _ = drafts
    problem_of(_post(web, f"{one}/rollback"), 409)
    _post(web, f"{two}/promote")
    assert _post(web, "eagle3--demo/rollback").json()["id"] == one
    assert _aliases(web)[two] == "previous"


def test_the_etag_notices_a_rivals_promotion(web: TestClient, drafts: list[str]) -> None:
    _, two, three = drafts
    etag = web.get(f"/v1/drafts/{two}").headers["etag"]
    assert web.get(f"/v1/drafts/{two}", headers={"if-none-match": etag}).status_code == 304
    _post(web, f"{three}/promote")
    problem_of(_post(web, f"{two}/promote", headers={"if-match": etag}), 412)
    assert _aliases(web)[three] == "champion"


def test_names_lead_past_deprecated_drafts(
    web: TestClient, state: State, drafts: list[str]
) -> None:
    one, two, three = drafts
    problem_of(_post(web, f"{one}/deprecate", json={"reason": "old"}), 409)
    body = _post(web, f"{two}/deprecate", json={"reason": "slow on long prompts"}).json()
    assert body["deprecation"] == "slow on long prompts"
    assert "slow on long" in problem_of(_post(web, f"{two}/promote"), 409)["detail"]
    _post(web, f"{three}/deprecate", json={"reason": "x"})
    problem_of(web.get("/v1/drafts/eagle3--demo@candidate"), 404)
    assert web.get(f"/v1/drafts/{two}").json()["deprecated_at"]
    listed = web.get("/v1/drafts?deprecated=false").json()["data"]
    assert [d["id"] for d in listed] == [one]
    assert _post(web, f"{two}/reinstate").json()["deprecated_at"] is None
    assert web.get("/v1/drafts/eagle3--demo@candidate").json()["id"] == two


def test_other_targets_have_champions_of_their_own(
    web: TestClient, state: State, drafts: list[str]
) -> None:
    other = _add(state, 4, champion=True, weights="v")
    assert _aliases(web)[drafts[0]] == "champion"
    assert web.get(f"/v1/drafts/{other}").json()["champion"] == other


def test_cursors_are_of_one_list(web: TestClient, drafts: list[str]) -> None:
    page = web.get("/v1/drafts?limit=2").json()
    following = web.get(f"/v1/drafts?limit=2&after={page['next']}").json()
    assert [d["id"] for d in page["data"] + following["data"]] == drafts[::-1]
    assert (following["has_more"], following["next"]) == (False, None)
    for cursor in (drafts[1], page["next"][:-2] + "AA", "é", ""):
        problem_of(web.get("/v1/drafts", params={"after": cursor}), 422)
    problem_of(web.get(f"/v1/drafts?alias=champion&after={page['next']}"), 422)
    problem_of(web.get(f"/v1/jobs?after={page['next']}"), 422)
