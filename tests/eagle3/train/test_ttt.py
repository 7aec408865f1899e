"""The property that makes training-time test right: it equals a literal chain of draft steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3.draft import Draft, DraftCache
from eagle3.train.attention import Attention, Blocked, Plain
from eagle3.train.batch import Batch, pack
from eagle3.train.ttt import unroll
from tests.eagle3.train.random_draft import random_draft, random_sample

STEPS = 5
SAMPLES = [
    random_sample(14, [(4, 9), (11, 14)], seed=1),
    random_sample(9, [(0, 0)], seed=2),  # nothing to learn: padding, as far as others can tell
    random_sample(17, [(3, 17)], seed=3),
]


def literal_chain(draft: Draft, batch: Batch, start: int, row: int) -> list[Tensor]:
    """Prefill rows 0..row of one sequence with true features, then draft one token at a time."""
    ids = batch.ids_T[start:]
    cache = DraftCache(row + 1 + STEPS)
    prefill = torch.arange(row + 1)
    features = draft.fuse(batch.features_T3H[start : start + row + 1])
    out = draft(ids[prefill + 1], features, prefill, cache)[-1:]
    cache.advance(row + 1)
    outs = [out]
    for k in range(1, STEPS):
        token = ids[row + 1 + k].reshape(1)
        out = draft(token, out, torch.tensor([row + k]), cache)
        cache.advance(1)
        outs.append(out)
    return outs


@torch.inference_mode()
@pytest.mark.parametrize("attention", [Plain, Blocked])
def test_every_row_of_every_step_equals_a_literal_chain(
    attention: Callable[[Batch, Tensor, float], Attention],
) -> None:
    draft = random_draft(torch.float64)
    batch = pack(SAMPLES, STEPS, torch.float64)
    rows = [
        start + row
        for start, length in zip(batch.starts, batch.lengths, strict=True)
        for row in range(length - STEPS)
    ]
    outs = list(unroll(draft, batch, torch.tensor(rows), STEPS, attention=attention))
    worst = 0.0
    for index, flat in enumerate(rows):
        start = max(s for s in batch.starts if s <= flat)
        for k, expected in enumerate(literal_chain(draft, batch, start, flat - start)):
            worst = max(worst, float((outs[k][index] - expected[0]).abs().max()))
    assert worst < 1e-10


@torch.inference_mode()
def test_neighbours_and_padding_leave_a_row_alone() -> None:
    draft = random_draft(torch.float64)
    alone = pack(SAMPLES[2:], STEPS, torch.float64)
    rows = alone.supervised_ST[0].nonzero()[:, 0]
    packed = pack([SAMPLES[0], SAMPLES[2], SAMPLES[1]], STEPS, torch.float64)
    offset = len(SAMPLES[0].input_ids)
    pairs = zip(
        unroll(draft, alone, rows, STEPS), unroll(draft, packed, rows + offset, STEPS), strict=True
    )
    for k, (a, b) in enumerate(pairs):
        stands = alone.supervised_ST[k][rows]
        assert bool(stands.any())
        torch.testing.assert_close(a[stands], b[stands], rtol=0, atol=1e-12)


@torch.inference_mode()
def test_a_wrong_rotary_shift_would_be_seen() -> None:
    """The test above can fail: leave the shift out and step 1 differs."""
    draft = random_draft(torch.float64)
    batch = pack(SAMPLES[2:], STEPS, torch.float64)
    rows = torch.arange(5)
    right = list(unroll(draft, batch, rows, 2))[1]
    query = draft.query

    def unshifted(mixed_T: Tensor, positions_T: Tensor) -> Tensor:
        return query(mixed_T, positions_T * 0 + batch.positions_T[rows[0]])

    draft.query = unshifted  # type: ignore[method-assign]
    wrong = list(unroll(draft, batch, rows, 2))[1]
    assert float((right - wrong).abs().max()) > 1e-3
