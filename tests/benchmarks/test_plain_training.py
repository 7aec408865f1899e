"""The baseline of the training benchmark computes what the product computes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.plain_training import plain_loss, step_mask
from eagle3.train.batch import Batch, pack
from eagle3.train.labels import Teacher
from eagle3.train.objective import objective
from tests.eagle3.train.random_draft import random_draft, random_sample

STEPS = 5


def some_outside(batch: Batch) -> None:
    """Let the target's choice lie outside the draft vocabulary (5 to 34) here and there."""
    batch.argmax_T[::7] = 37


@pytest.mark.parametrize("spans", [[(1, 40)], [(3, 11), (15, 31), (36, 38)]])
def test_same_loss_and_gradients_as_ours(spans: list[tuple[int, int]]) -> None:
    batch = pack([random_sample(40, spans, seed=1)], STEPS, torch.float64)
    some_outside(batch)
    head_DH = torch.randn(30, 16, generator=torch.Generator().manual_seed(2)).double()
    ours, plain = random_draft(torch.float64), random_draft(torch.float64)

    mine = objective(ours, Teacher(head_DH), batch, 0.8).loss
    mask = step_mask(40, STEPS, torch.float64)
    theirs = plain_loss(plain, head_DH, batch, 0.8, mask)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)

    torch.autograd.backward([mine, theirs])
    for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert float(a.grad.abs().max()) > 0, name
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-13, msg=name)
