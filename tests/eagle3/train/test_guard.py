"""NaN and infinity: the batch is named, left out within a limit, and kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3.data.features import Sample, SampleRef
from eagle3.data.offline import FeatureStore
from eagle3.errors import BadInput
from eagle3.run import current
from eagle3.train.batch import Batch
from eagle3.train.guard import non_finite
from eagle3.train.loop import Trainer
from eagle3.train.objective import Objective
from tests.eagle3.train.random_draft import random_sample
from tests.eagle3.train.stage import change_recipe, run_train


def spoil(monkeypatch: pytest.MonkeyPatch, sample_id: str) -> None:
    load = FeatureStore.load

    def spoiled(self: FeatureStore, ref: SampleRef) -> Sample:
        sample = load(self, ref)
        if ref.id != sample_id:
            return sample
        features = sample.features.clone()
        features[3, 1] = float("nan")
        return replace(sample, features=features)

    monkeypatch.setattr(FeatureStore, "load", spoiled)


def test_nan_features_cost_their_batch_and_no_more(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "3")
    summary, printed = run_train(extracted, "nan")
    assert summary["batches_skipped"] == 4  # one an epoch
    assert "features of 3 hold NaN or infinity" in printed
    kept = sorted((current(extracted, "train") / "skipped").iterdir())
    assert len(kept) == 4
    facts = json.loads((kept[0] / "batch.json").read_text())
    place = [s["id"] for s in facts["samples"]].index("3")
    tensors = load_file(kept[0] / "batch.safetensors")
    assert bool(tensors[f"{place}.features"].isnan().any())
    history = (current(extracted, "train") / "history.jsonl").read_text().splitlines()
    losses = [json.loads(x)["train/loss"] for x in history if "train/loss" in x]
    assert len(losses) == summary["steps"] - 4
    assert all(loss == loss for loss in losses)


def test_too_many_such_batches_are_an_error_that_names_the_last(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "3")
    change_recipe(extracted, max_skipped=1)
    try:
        with pytest.raises(BadInput, match=r"features of 3 hold .* more than train.max_skipped 1"):
            run_train(extracted, "too many")
    finally:
        change_recipe(extracted, max_skipped=8)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_no_weight(
    extracted: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    gradients = Trainer._gradients
    seen: list[dict[str, torch.Tensor]] = []

    def broken(self: Trainer, batches: list[Batch]) -> tuple[Objective, float]:
        result, norm = gradients(self, batches)
        if self.state["step"] in (2, 3):
            seen.append({n: p.detach().clone() for n, p in self.draft.named_parameters()})
        return result, value if self.state["step"] == 2 else norm

    monkeypatch.setattr(Trainer, "_gradients", broken)
    summary, printed = run_train(extracted, f"gradient {value}")
    assert summary["batches_skipped"] == 1
    assert f"the gradient's norm is {value}" in printed
    assert all(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


def test_a_held_out_sample_with_nan_is_left_out_by_name(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "25")
    _, printed = run_train(extracted, "held out")
    assert "held-out samples 25 are left out" in printed


def test_large_but_finite_features_pass() -> None:
    sample = random_sample(4, [(1, 4)], 0)
    large = replace(sample, features=torch.full((4, 48), 3e38, dtype=torch.bfloat16))
    assert non_finite([large]) == []
    assert non_finite([replace(large, hidden=sample.hidden / 0)]) == ["0"]
