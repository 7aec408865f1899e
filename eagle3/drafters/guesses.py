"""How good guesses are along held-out answers, without running the target again.

A chain is accepted as far as it agrees with the answer, and up to there it has read the answer's
own tokens. So guesses made from these tell everything: nothing has to be drafted.

Shapes: R rows where drafting can start, K depths, I guesses of each, likeliest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from eagle3.data.features import Sample
from eagle3.train.batch import Batch, pack
from eagle3.train.evaluate import Acceptance, walk


class Guesser(Protocol):
    def guesses(self, batch: Batch, rows_R: Tensor, depth: int, top: int) -> Tensor:
        """Target ids [K, R, I]: guesses for x[j+2+k] of a row j that has read the answer's own
        tokens up to x[j+1+k]."""
        ...

    @property
    def embed_VH(self) -> Tensor: ...


def acceptance(guesser: Guesser, samples: Iterable[Sample], depth: int) -> Acceptance:
    """Greedy chains of this depth from every row that a round can start at."""
    total = Acceptance(depth)
    for sample, rows_R, right_KRI in _checked(guesser, samples, depth, 1):
        matched_R = right_KRI[..., 0].long().cumprod(0).sum(0)
        walk(total, dict(zip(rows_R.tolist(), matched_R.tolist(), strict=True)), sample.spans)
    return total


def rank_accuracy(guesser: Guesser, samples: Iterable[Sample], depth: int, top: int) -> Tensor:
    """How often the guess of rank i at depth k is right, given that those before are, [K, I]; I is
    `top`, or as many guesses as the draft vocabulary has."""
    hits, rows = torch.zeros(depth, top), torch.zeros(depth, 1)
    for _, rows_R, right_KRI in _checked(guesser, samples, depth, top):
        hits = hits[:, : right_KRI.shape[2]] + right_KRI.sum(1).cpu()
        rows += len(rows_R)
    return hits / rows.clamp(min=1)


@torch.inference_mode()
def _checked(
    guesser: Guesser, samples: Iterable[Sample], depth: int, top: int
) -> Iterator[tuple[Sample, Tensor, Tensor]]:
    """Each sample, its rows, and whether their guesses are the answer's tokens."""
    like = guesser.embed_VH
    for sample in samples:
        batch = pack([sample], depth, like.dtype, like.device)
        rows_R = batch.supervised_ST[0].nonzero()[:, 0]
        if len(rows_R) == 0:
            continue
        ids_KRI = guesser.guesses(batch, rows_R, depth, top)
        ahead_K1 = torch.arange(2, depth + 2, device=rows_R.device)[:, None]
        data_KR = batch.ids_T[(rows_R + ahead_K1).clamp(max=len(batch.ids_T) - 1)]
        stands_KR = batch.supervised_ST[:, rows_R]
        yield sample, rows_R, (ids_KRI == data_KR[..., None]) & stands_KR[..., None]
