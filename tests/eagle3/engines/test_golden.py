"""Golden checkpoints in our engine and in llama.cpp: every acceptance is known in advance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.engines.engine import Answer, Drafted, Sampling, Settings
from eagle3.engines.known import engine
from tests.eagle3.engines.checkpoints import CAPTURE, KEPT, OTHERS, Checkpoint, build

Build = Callable[..., Checkpoint]
LLAMACPP = pytest.param("llamacpp", marks=pytest.mark.slow)  # its converter imports torch
ENGINES = ["native", LLAMACPP]
PROMPTS = 3


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Checkpoints by their arguments, each built once."""
    made: dict[tuple[object, ...], Checkpoint] = {}

    def one(*arguments: object) -> Checkpoint:
        if arguments not in made:
            made[arguments] = build(tmp_path_factory.mktemp("golden"), *arguments)  # type: ignore[arg-type]
        return made[arguments]

    return one


def served(
    name: str, checkpoint: Checkpoint, tokens: int, length: int, start: int = 0
) -> tuple[list[list[int]], list[Answer], Drafted]:
    """Prompts, their answers of `length` tokens, and what was drafted and accepted."""
    settings = Settings(tokens, context=128, threads=1)
    draft = checkpoint.draft if tokens else None
    work = checkpoint.target.parent / "work"
    prompts = checkpoint.prompts(PROMPTS, start=start)
    with engine(name).start(checkpoint.target, draft, settings, work) as running:
        answers = running.generate(prompts, Sampling(length, ignore_eos=True))
        return prompts, answers, running.metrics()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5])
def test_every_guess_is_accepted(name: str, family: str, tokens: int, golden: Build) -> None:
    checkpoint, rounds = golden(family), 4
    prompts, answers, drafted = served(name, checkpoint, tokens, 1 + rounds * (tokens + 1))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == checkpoint.chain(prompt[-1], len(answer.tokens))
    total = PROMPTS * rounds
    assert drafted == Drafted(total, total * tokens, total * tokens, (total,) * tokens)
    assert drafted.tau == tokens + 1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize(("family", "layers"), [("llama", CAPTURE), ("qwen3", OTHERS)])
def test_each_captured_layer_is_the_right_one(
    name: str, family: str, layers: tuple[int, ...], slot: int, golden: Build
) -> None:
    """The usual layers, which no list names, and others, which each format writes its way."""
    _, _, drafted = served(name, golden(family, slot, layers), 3, 17)
    assert drafted == Drafted(12, 36, 36, (12, 12, 12))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_layer_early_or_late_accepts_nothing(
    name: str, shift: int, golden: Build, tmp_path: Path
) -> None:
    checkpoint = golden("llama", 0)
    low, middle, high = CAPTURE
    moved = [low + shift, middle, high]
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "model.safetensors").symlink_to(checkpoint.draft / "model.safetensors")
    config = json.loads((checkpoint.draft / "config.json").read_text())
    config |= {"eagle_aux_hidden_state_layer_ids": moved, "eagle_config": None}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": moved}
    (draft / "config.json").write_text(json.dumps(config))
    shifted = Checkpoint(checkpoint.target, draft, checkpoint.order, checkpoint.certainty)
    prompts, answers, drafted = served(name, shifted, 3, 17)
    assert drafted.accepted <= drafted.drafted * 0.05
    assert answers[0].tokens == checkpoint.chain(prompts[0][-1], 17)


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_accepted_outside_the_drafts_vocabulary(name: str, golden: Build) -> None:
    checkpoint = golden("llama")
    prompts, answers, drafted = served(name, checkpoint, 3, 6, start=KEPT)
    assert drafted.accepted == 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == checkpoint.chain(prompt[-1], 6)


@pytest.mark.parametrize("name", ENGINES)
def test_without_a_draft_nothing_is_drafted(name: str, golden: Build) -> None:
    checkpoint = golden("llama")
    prompts, answers, drafted = served(name, checkpoint, 0, 20)
    assert drafted == Drafted()
    assert drafted.tau == 1
    assert answers[0].tokens == checkpoint.chain(prompts[0][-1], 20)
