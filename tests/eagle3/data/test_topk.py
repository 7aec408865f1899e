"""Kept probabilities in place of the final hidden state: the same labels, and what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3.data.offline import FeatureStore
from eagle3.data.topk import TopK, TopKLoss, select
from eagle3.run import current
from eagle3.train.labels import HeadLabels, TopKLabels
from tests.eagle3.data.answered import run_extract, run_train, write_config


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_all_probabilities_are_the_labels_of_the_head() -> None:
    hidden_PH, head_VH = random(5, 8), random(20, 8)
    t2d_V = torch.ones(20, dtype=torch.bool)
    t2d_V[[0, 3, 19]] = False
    logits_PV = hidden_PH @ head_VH.T
    top = logits_PV.softmax(-1).topk(20)
    kept = TopKLabels(TopK(top.indices, top.values), t2d_V, 17)
    head = HeadLabels(hidden_PH, head_VH[t2d_V], None)
    spans = [slice(0, 10), slice(10, 20)]  # the last one ends beyond the vocabulary
    found = torch.cat([kept.logits(slice(1, 4), span) for span in spans], -1).softmax(-1)
    expected = torch.cat([head.logits(slice(1, 4), span) for span in spans], -1).softmax(-1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(kept.top.mass_inside(t2d_V), logits_PV.softmax(-1)[:, t2d_V].sum(-1))


def test_what_is_not_kept_has_no_probability() -> None:
    logits_RV = random(3, 20)
    ids, probs = select(logits_RV, logits_RV.logsumexp(-1), 4)
    top = TopK(ids.long(), probs.float())
    label = TopKLabels(top, torch.ones(20, dtype=torch.bool), 20).logits(slice(0, 3), slice(0, 20))
    assert torch.equal((label.softmax(-1) > 0).sum(-1), torch.full((3,), 4))
    assert torch.equal(label.argmax(-1), logits_RV.argmax(-1))


def test_the_loss_is_that_of_chains_along_the_answer() -> None:
    mass_L = torch.tensor([0.1, 0.9, 0.8, 0.5, 0.1])  # rows 1 to 3 predict the answer
    loss = TopKLoss.of(mass_L, [(2, 5)], depth=2)
    assert (loss.rows, loss.full) == (3, (1 + 2) + (1 + 2) + (1 + 1))
    assert loss.mass == pytest.approx(0.9 + 0.8 + 0.5)
    chains = (1 + 0.9 + 0.9 * 0.8) + (1 + 0.8 + 0.8 * 0.5) + (1 + 0.5)
    assert loss.best == pytest.approx(chains)
    assert TopKLoss.of(torch.ones(5), [(2, 5)], 2).best == loss.full


def test_training_on_kept_probabilities(answered: Path) -> None:
    sizes, histories = {}, {}
    for k in (None, 64, 4):
        write_config(answered, top_k=k)
        summary = run_extract(answered)
        sizes[k] = summary["bytes"]
        histories[k], _ = run_train(answered, f"top {k}")
        if k is not None:
            assert summary["top_k"] == k
            lost = 1 - summary["top_k_mass"]
            assert abs(lost) < 1e-2 if k == 64 else lost > 0.05
            best, full = (summary[f"{name}_best_acceptance_length"] for name in ("top_k", "full"))
            assert best == pytest.approx(full, rel=1e-2) if k == 64 else best < full
    assert sizes[4] < sizes[None]
    # Probabilities rounded to bfloat16 in place of a hidden state so rounded.
    for whole, kept in zip(histories[None], histories[64], strict=True):
        assert kept["train/loss"] == pytest.approx(whole["train/loss"], rel=1e-2)
    assert histories[4][-1]["train/loss"] != histories[None][-1]["train/loss"]
    store = FeatureStore.open(current(answered, "extract"))
    sample = store.load(store.samples("train")[0])
    assert sample.hidden.shape == (len(sample.input_ids), 0)
    assert sample.top is not None
    assert torch.equal(sample.top.ids[:, 0][sample.argmax >= 0], sample.argmax[sample.argmax >= 0])
    assert len(sample.first(7).top.probs) == 7  # type: ignore[union-attr]
