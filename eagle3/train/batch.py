"""Samples packed end to end into one stream of rows, with no padding and no cross-talk.

T rows in the batch, S draft steps, 3H captured features, H hidden size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.data.features import Sample, SampleRef
from eagle3.data.mask import supervised_rows
from eagle3.data.topk import TopK


@dataclass(frozen=True)
class Batch:
    """Rows of several sequences, one after the other."""

    ids_T: Tensor
    features_T3H: Tensor
    hidden_TH: Tensor
    argmax_T: Tensor
    """The target's own greedy choice for the token after row j; -1 where no loss looks."""
    positions_T: Tensor
    """Row index inside its own sequence."""
    lengths: tuple[int, ...]
    supervised_ST: Tensor
    """Whether row j at step k stands where drafting can start (method: one assistant turn)."""
    top_T: TopK | None = None
    """Kept probabilities, where the feature store holds these in place of `hidden_TH`."""

    @property
    def sequence_T(self) -> Tensor:
        """Which sequence each row belongs to, int64."""
        lengths = torch.tensor(self.lengths, device=self.ids_T.device)
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    @property
    def starts(self) -> list[int]:
        return [sum(self.lengths[:i]) for i in range(len(self.lengths))]


def pack(
    samples: Sequence[Sample],
    steps: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Batch:
    """Pack samples for `steps` draft steps."""
    lengths = tuple(len(s.input_ids) for s in samples)
    masks = [supervised_rows(s.spans, len(s.input_ids), steps) for s in samples]
    return Batch(
        ids_T=torch.cat([s.input_ids for s in samples]).to(device),
        features_T3H=torch.cat([s.features for s in samples]).to(device, dtype),
        hidden_TH=torch.cat([s.hidden for s in samples]).to(device, dtype),
        argmax_T=torch.cat([s.argmax for s in samples]).to(device),
        positions_T=torch.cat([torch.arange(n) for n in lengths]).to(device),
        lengths=lengths,
        supervised_ST=torch.cat(masks, dim=1).to(device),
        top_T=TopK.cat([s.top for s in samples if s.top is not None], device),
    )


def plan_batches(
    refs: Sequence[SampleRef], batch_tokens: int, max_length: int, epochs: float, seed: int
) -> list[list[SampleRef]]:
    """Every batch of the whole training, in order: shuffled by epoch, a pure function of the seed.

    Resuming at step n is reading the list from n.
    """
    batches: list[list[SampleRef]] = []
    whole, rest = int(epochs), epochs - int(epochs)
    for epoch in range(whole + (rest > 0)):
        order = list(refs)
        random.Random(seed * 1_000_003 + epoch).shuffle(order)  # noqa: S311
        if epoch == whole:
            order = order[: max(1, round(rest * len(order)))]
        batch: list[SampleRef] = []
        rows = 0
        for ref in order:
            length = min(ref.length, max_length)
            if batch and rows + length > batch_tokens:
                batches.append(batch)
                batch, rows = [], 0
            batch.append(ref)
            rows += length
        batches.append(batch)
    return batches
