"""Answers from a real vLLM, in its own environment; one is made where there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3.engines.engine import Settings
from eagle3.engines.vllm import Vllm
from eagle3.errors import BadInput
from tests.eagle3.data.conftest import MakeRun, Run
from tests.tiny import Tiny, build_permutation_target, write_prompts

CERTAINTY = 4.0

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
STAGES = ("resolve", "prepare", "regenerate")


@dataclass(frozen=True)
class Server:
    tiny: Tiny
    url: str


@pytest.fixture(scope="module")
def vllm(vllm_environment: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a permutation target whose generation config asks for anything but its own
    distribution: vLLM takes its defaults from there."""
    folder = tmp_path_factory.mktemp("vllm")
    tiny = build_permutation_target(folder / "target", vocab=128, ends=True, certainty=CERTAINTY)
    unlike = {"eos_token_id": 1, "do_sample": True, "top_k": 1, "repetition_penalty": 1.5}
    (tiny.path / "generation_config.json").write_text(json.dumps(unlike))
    settings = Settings(context=256, slots=48, memory_gib=0.25, ready_seconds=900)
    with Vllm().start(tiny.path, None, settings, folder) as running:
        yield Server(tiny, f"{running.url}/v1")


def asked(
    make_run: MakeRun, vllm: Server, folder: Path, target: Tiny | None = None, **more: Any
) -> Run:
    source = write_prompts(folder / "p.jsonl", vllm.tiny.prompts(123)[-64:])
    settings = {"engine": "openai", "base_url": vllm.url, "max_new_tokens": 12, "concurrency": 16}
    path = (target or vllm.tiny).path
    return make_run(target=path, source=source, regenerate={**settings, **more})


def test_greedy_answers_are_the_targets_own(
    make_run: MakeRun, vllm: Server, tmp_path: Path
) -> None:
    run = asked(make_run, vllm, tmp_path)
    summary = run.run(*STAGES)
    responses = run.lines("regenerate", "responses.jsonl")
    assert len(responses) == 64
    for response in responses:
        [[start, end]] = response["spans"]
        assert response["ids"][start:end] == vllm.tiny.chain(response["ids"][start - 1], 12)
    assert {r["finish"] for r in responses} == {"eos", "length"}
    assert (summary["not_round_trip"], summary["retries"]) == (0, 0)
    assert summary["served"]["tokenizer"] == "compared"
    assert summary["served"]["largest_gap"] == 0


def test_sampled_answers_follow_the_targets_distribution(
    make_run: MakeRun, vllm: Server, tmp_path: Path
) -> None:
    """Each word leads to its successor with a known probability, whatever the defaults there."""
    run = asked(make_run, vllm, tmp_path, answers=4, temperature=1.0, further_temperature=1.0)
    run.run(*STAGES)
    pairs = [
        (response["ids"][i - 1], response["ids"][i])
        for response in run.lines("regenerate", "responses.jsonl")
        for start, end in response["spans"]
        for i in range(start, end)
        if response["split"] == "train"
    ]
    share = sum(vllm.tiny.perm[a] == b for a, b in pairs) / len(pairs)
    expected = math.exp(CERTAINTY) / (math.exp(CERTAINTY) + 127)
    assert len(pairs) > 1000
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(pairs))


def test_another_target_is_refused(make_run: MakeRun, vllm: Server, tmp_path: Path) -> None:
    other = build_permutation_target(tmp_path / "other", vocab=128, seed=1, certainty=CERTAINTY)
    run = asked(make_run, vllm, tmp_path, target=other)
    with pytest.raises(BadInput, match=r"'target' is not the target: after .* it writes"):
        run.run(*STAGES)
