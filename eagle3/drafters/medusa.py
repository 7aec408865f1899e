"""Medusa (Cai et al. 2024, arXiv 2401.10774): heads that guess several tokens at once.

Every head reads the same hidden state and knows nothing of the other heads' guesses: the tree is
the Cartesian product of their likeliest tokens, cut to the nodes that are most often right. This is
Medusa-1: the target stays frozen. Guesses stand only where exact verification accepts them, unless
the paper's typical acceptance is asked for (`decode.verify.Typical`): it bends what is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from eagle3.drafters.heads import DraftHeads


class ResBlock(nn.Module):
    """x + SiLU(W x + b), at first x itself."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class Medusa(DraftHeads):
    """The paper has 5 heads of one residual block each."""

    name = "medusa"
    sequential = False
    decay = 0.8

    @staticmethod
    def blocks(k: int, hidden_size: int, layers: int) -> nn.Module:
        return nn.Sequential(*(ResBlock(hidden_size) for _ in range(layers)))

    def state(self, k: int, hidden_RH: Tensor, tokens: Sequence[Tensor]) -> Tensor:
        out: Tensor = self.states[k](hidden_RH)
        return out
