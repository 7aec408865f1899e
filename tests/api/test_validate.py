"""`POST /v1/jobs:validate`: a plan where sizes are within reach, and what is unknown elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import estimate
from api.state import State
from eagle3.plan import Hub, Unreachable
from jobs import service
from tests.api.conftest import Ran, problem_of

QUICK = {"target": "demo", "recipe": "quick"}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def validated(web: TestClient, body: dict[str, Any], **query: Any) -> dict[str, Any]:
    answer = web.post("/v1/jobs:validate", json=body, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_demo_is_planned_from_what_ships_here(web: TestClient) -> None:
    found = validated(web, QUICK, gpu="h100", gpus=8, price=20)
    plan = found["plan"]
    assert found["unknown"] == []
    assert plan["target"]["parameters"] == 134_515_008
    assert plan["workload"]["train_prompts"] == 1200
    assert plan["hardware"]["count"] == 8
    assert plan["money"] == pytest.approx(20 * plan["hours"])
    assert {m["name"] for m in plan["modes"]} >= {"offline-ddp", "streamed-fsdp", "online-ddp"}
    assert plan["recommended"] in {m["name"] for m in plan["modes"] if m["fits"]}
    for mode in plan["modes"]:
        parts = [mode["training"], *filter(None, [mode["extracting"]])]
        assert mode["memory_bytes"] == max(part["total"] for part in parts)


def test_a_directory_has_its_own_sizes(web: TestClient, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n' * 40)
    body = {"target": f"file://{tmp_path}", "prompts": {"source": str(prompts), "heldout": 8}}
    plan = validated(web, body)["plan"]
    assert plan["target"]["vocab_size"] == 1000
    assert (plan["workload"]["train_prompts"], plan["workload"]["heldout_prompts"]) == (32, 8)


def test_what_is_out_of_reach_is_named(
    web: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "hub_of", lambda settings: Hub(offline=True))
    body = {"target": "org/name", "prompts": {"source": "org/prompts"}}
    found = validated(web, body)
    assert found["plan"] is None
    assert ["org/name" in found["unknown"][0], "org/prompts" in found["unknown"][1]] == [True, True]
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    found = validated(web, {"target": f"file://{tmp_path}"})
    assert found["plan"] is None
    assert "mamba" in found["unknown"][0]
    assert problem_of(web.post("/v1/jobs:validate", json={"target": "nope"}), 422)


def test_an_earlier_job_knows_more(web: TestClient, state: State, queued: str) -> None:
    with state.db.write() as session:
        prepare = service.get_job(session, queued).stages[1]
        prepare.summary = {"train": 100, "heldout": 20, "prompt_tokens": 4800}
    plan = validated(web, QUICK)["plan"]
    assert plan["based_on"] == queued
    assert plan["workload"]["response_tokens"] == 120 * 96
    assert plan["workload"]["tokens"] == 120 * 96 + 4800
    assert validated(web, {**QUICK, "prompts": {"limit": 16}})["plan"]["based_on"] is None


def test_sizes_of_an_earlier_job_stand_in_for_a_config(
    web: TestClient, state: State, queued: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise Unreachable("the hub cannot be reached")

    monkeypatch.setattr(estimate, "read_config", gone)
    assert validated(web, QUICK)["plan"] is None
    sizes = {"parameters": 134_515_008, "hidden_size": 576, "intermediate_size": 1536}
    with state.db.write() as session:
        resolve = service.get_job(session, queued).stages[0]
        resolve.summary = {**sizes, "vocab_size": 49152, "num_layers": 30}
    plan = validated(web, QUICK)["plan"]
    assert plan["based_on"] == queued
    assert plan["target"]["parameters"] == 134_515_008


def test_a_draft_to_go_on_from_is_named_and_compared(
    web: TestClient, state: State, succeeded: str, tmp_path: Path
) -> None:
    body = {**QUICK, "overrides": {"train": {"start_from": "draft:eagle3--demo@champion"}}}
    found = validated(web, body)
    assert found["recipe"]["train"]["start_from"] == "draft:dft_01test"
    assert found["unknown"] == [
        "whether draft dft_01test fits the target: the stage resolve finds out"
    ]
    with state.db.write() as session:
        resolve = service.get_job(session, succeeded).stages[0]
        resolve.summary = {"hidden_size": 576, "vocab_size": 49152}
    assert validated(web, body)["unknown"] == []
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    other = web.post("/v1/jobs:validate", json={**body, "target": f"file://{tmp_path}"})
    assert problem_of(other, 422)["errors"] == [
        {
            "pointer": "#/overrides/train/start_from",
            "detail": "draft dft_01test was made for demo@sha256:abc: hidden size 576 where this "
            "target has 64, vocabulary 49152 where this target has 1000",
        }
    ]


def test_an_evaluation_has_its_draft_and_no_plan(web: TestClient, succeeded: str) -> None:
    body = {"target": "demo", "evaluate": {"draft": "dft_01test", "count": 50}}
    found = validated(web, body)
    assert found["plan"] is None
    assert "decodes 50 prompts" in found["unknown"][0]
    other = web.post("/v1/jobs:validate", json={**body, "evaluate": {"draft": "dft_99"}})
    assert problem_of(other, 422)["errors"][0]["pointer"] == "#/evaluate/draft"


@pytest.mark.parametrize("query", ["gpu=abacus", "gpus=0", "price=-1", "gup=h100", "price=nan"])
def test_hardware_that_does_not_exist_is_refused(web: TestClient, query: str) -> None:
    found = problem_of(web.post(f"/v1/jobs:validate?{query}", json=QUICK), 422)
    assert found["errors"][0]["pointer"].startswith("query/")


def test_the_command_prints_the_plan(run: Callable[..., Ran]) -> None:
    ran = run("validate", "--target", "demo", "--recipe", "quick", "--gpu", "h100", "--price", "3")
    assert ran.code == 0, ran.err
    assert "134.5 million parameters" in ran.out
    assert "recommended" in ran.out
    assert "eagle3--demo" in ran.err
    plan = json.loads(run("validate", "--target", "demo", "--json").out)["plan"]
    assert plan["hardware"]["device"]["name"] == "cpu"
    assert run("validate").code == 2
    assert run("validate", "--target", "demo", "--gpu", "abacus").code == 2
