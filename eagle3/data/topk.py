"""The target's k largest probabilities of a row, stored in place of its final hidden state.

Less disk (6 k bytes a row in place of 2 H), less to learn from: what lies beyond the k-th token is
lost. Greedy decoding asks for the first alone. When sampling, a draft that has learned the stored
distribution perfectly is accepted with probability M, the mass that was kept: of p renormalised,
p / M, the overlap with p is the sum of min(p, p / M) = M.

Shapes: R rows, L rows of a sequence, K kept tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.data.records import Record


@dataclass(frozen=True)
class TopK:
    """Rows of kept probabilities; rows in which no loss looks are zero."""

    ids: Tensor
    """int64 [R, K], most likely first."""
    probs: Tensor
    """float32 [R, K]: probabilities under the whole vocabulary."""

    def __getitem__(self, rows: slice | Tensor) -> TopK:
        return TopK(self.ids[rows], self.probs[rows])

    @classmethod
    def cat(cls, parts: list[TopK], device: torch.device | str) -> TopK | None:
        """All rows on the device; None of nothing."""
        if not parts:
            return None
        ids, probs = torch.cat([p.ids for p in parts]), torch.cat([p.probs for p in parts])
        return cls(ids.to(device), probs.to(device))

    def mass_inside(self, inside_V: Tensor) -> Tensor:
        """Kept mass on the tokens that `inside_V` (bool) marks, [R]."""
        return (self.probs * inside_V[self.ids]).sum(-1)


class TopKLoss(Record):
    """What storing k probabilities loses, summed over rows; see the top of this file."""

    rows: int = 0
    mass: float = 0.0
    """Sum of the rows' kept mass."""
    best: float = 0.0
    """Sum of the highest acceptance lengths that sampling can reach from each row."""
    full: float = 0.0
    """The same with nothing lost."""

    def __add__(self, other: TopKLoss) -> TopKLoss:
        return TopKLoss(
            rows=self.rows + other.rows,
            mass=self.mass + other.mass,
            best=self.best + other.best,
            full=self.full + other.full,
        )

    @classmethod
    def of(cls, mass_L: Tensor, spans: list[tuple[int, int]], depth: int) -> TopKLoss:
        """Chains of `depth` from every row of a sequence at which an answer's token is predicted.

        Args:
            mass_L: kept mass of each row of the sequence.
        """
        total = cls()
        for start, end in spans:
            mass = mass_L[max(start - 1, 0) : end - 1].double().clamp(max=1)
            rows = len(mass)
            reach = torch.ones(rows, dtype=torch.float64)
            for n in range(min(depth, rows)):
                reach = reach[: rows - n] * mass[n:]
                total += cls(best=float(reach.sum()), full=float(rows - n))
            total += cls(rows=rows, mass=float(mass.sum()), best=float(rows), full=float(rows))
        return total

    def summary(self, k: int) -> dict[str, float]:
        rows = max(1, self.rows)
        return {
            "top_k": k,
            "top_k_mass": round(self.mass / rows, 5),
            "top_k_best_acceptance_length": round(self.best / rows, 4),
            "full_best_acceptance_length": round(self.full / rows, 4),
        }


def select(logits_RV: Tensor, lse_R: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest: ids int32 [R, K] and probabilities bfloat16 [R, K], on the CPU."""
    top = logits_RV.topk(min(k, logits_RV.shape[-1]), dim=-1)
    probs = (top.values - lse_R[:, None]).exp()
    return top.indices.to("cpu", torch.int32), probs.to("cpu", torch.bfloat16)
