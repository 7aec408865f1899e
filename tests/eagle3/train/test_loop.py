"""The training stage: it learns, keeps the best draft, and leaves out what cannot teach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eagle3.config import TrainConfig
from eagle3.data.features import SampleRef
from eagle3.errors import BadInput
from eagle3.run import current, read_manifest
from eagle3.train.evaluate import Acceptance
from eagle3.train.samples import teaches
from eagle3.train.schedule import learning_rate
from eagle3.train.start import HEAD_SCALE, Head, start_from_target
from tests.eagle3.train.random_draft import random_draft
from tests.eagle3.train.stage import change_recipe, run_train


def test_it_learns_and_keeps_the_best(extracted: Path) -> None:
    summary, _ = run_train(extracted, "whole")
    history = (current(extracted, "train") / "history.jsonl").read_text().splitlines()
    rows = [json.loads(x) for x in history]
    assert rows[-1]["train/loss"] < 0.9 * rows[0]["train/loss"]
    evaluated = {r["step"]: r["eval/acceptance_length"] for r in rows if "eval/acceptance_0" in r}
    assert summary["acceptance_length"] == round(max(evaluated.values()), 4)
    assert evaluated[summary["best_step"]] == max(evaluated.values())
    assert 0 < summary["coverage"] <= 1
    assert summary["steps"] == summary["steps_planned"] == rows[-1]["step"]
    best = next(row for row in rows if row["step"] == summary["best_step"])
    assert summary["n_alpha"] == [round(best[f"eval/n_alpha_{n}"], 4) for n in range(3)]
    assert rows[-1]["eval/loss"] < next(r["eval/loss"] for r in rows if "eval/loss" in r)


def test_a_sample_that_teaches_nothing_is_left_out() -> None:
    def ref(*spans: tuple[int, int]) -> SampleRef:
        return SampleRef(id="a", split="train", start=0, length=20, spans=list(spans))

    assert teaches(ref((5, 7)), 20)
    assert not teaches(ref((5, 6)), 20)  # the answer is an end-of-turn alone
    assert not teaches(ref((5, 20)), 6)
    assert teaches(ref((3, 4), (8, 12)), 20)


def test_a_target_that_ends_every_answer_at_once(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.train.samples.teaches", lambda ref, limit: False)
    with pytest.raises(BadInput, match="0 training samples"):
        run_train(extracted, "nothing")


def test_the_same_seed_gives_the_same_bits(extracted: Path) -> None:
    run_train(extracted, "once")
    once = (current(extracted, "train") / "history.jsonl").read_text()
    digest = read_manifest(current(extracted, "train"))["outputs"]["draft/model.safetensors"]
    run_train(extracted, "twice")
    assert (current(extracted, "train") / "history.jsonl").read_text() == once
    again = read_manifest(current(extracted, "train"))["outputs"]["draft/model.safetensors"]
    assert again == digest


def test_it_stops_when_nothing_improves(extracted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second evaluation is the best; patience of two ends training after the fourth."""
    lengths = iter([10, 20, 15, 20, 30])

    def measured(*_: object) -> list[Acceptance]:
        return [Acceptance(3, rounds=10, emitted=next(lengths)), Acceptance(3)]

    monkeypatch.setattr("eagle3.train.evaluate.acceptances", measured)
    change_recipe(extracted, patience=2)
    summary, printed = run_train(extracted, "patience")
    change_recipe(extracted, patience=None)
    assert (summary["steps"], summary["best_step"], summary["acceptance_length"]) == (16, 8, 2.0)
    assert summary["steps_planned"] > 16
    assert "stopped at step 16" in printed


def test_gradients_of_several_forwards_make_one_step(extracted: Path) -> None:
    whole, _ = run_train(extracted, "whole")
    change_recipe(extracted, accumulate=3)
    summary, _ = run_train(extracted, "accumulate")
    change_recipe(extracted, accumulate=1)
    assert summary["steps"] == -(-whole["steps"] // 3)
    assert summary["train_tokens"] == whole["train_tokens"]


@pytest.mark.parametrize("head", ["random", "target", "target_rescaled"])
def test_the_head_starts_as_the_recipe_says(head: Head) -> None:
    draft = random_draft()
    head_VH = torch.randn(40, 16)
    start_from_target(draft, head_VH, head)
    copied = torch.equal(draft.lm_head.weight, head_VH[5:35])
    assert copied == (head != "random")
    assert float(draft.norm.weight.detach()[0]) == pytest.approx(
        HEAD_SCALE if head == "target_rescaled" else 1.0
    )


@pytest.mark.parametrize(
    ("loss", "precision"),
    [("tv", "float32"), ("lk_alpha", "float32"), ("lk_lambda", "float32"), ("soft_ce", "bfloat16")],
)
def test_it_learns_by_other_losses_and_in_half_precision(
    extracted: Path, loss: str, precision: str
) -> None:
    change_recipe(extracted, loss=loss, precision=precision, loss_per="sequence", recompute=True)
    run_train(extracted, f"{loss} {precision}")
    own = {"precision": "float32", "recompute": False}
    change_recipe(extracted, loss="soft_ce", loss_per="token", **own)
    history = (current(extracted, "train") / "history.jsonl").read_text().splitlines()
    rows = [json.loads(x) for x in history]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


@pytest.mark.parametrize(
    ("schedule", "halfway", "last"),
    [("cosine", 0.525, 0.05), ("linear", 0.525, 0.05), ("constant", 1.0, 1.0)],
)
def test_schedules_rise_then_fall(schedule: str, halfway: float, last: float) -> None:
    config = TrainConfig.model_validate(
        {"schedule": schedule, "warmup_steps": 100, "learning_rate": 1.0}
    )
    assert learning_rate(config, 0, 1100) == pytest.approx(0.01)
    assert learning_rate(config, 99, 1100) == pytest.approx(1.0)
    assert learning_rate(config, 600, 1100) == pytest.approx(halfway)
    assert learning_rate(config, 1099, 1100) == pytest.approx(last, abs=2e-3)
    share = config.model_copy(update={"warmup_steps": None, "warmup_fraction": 0.5})
    assert learning_rate(share, 49, 100) == pytest.approx(1.0)
