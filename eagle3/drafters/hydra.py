"""Hydra (Ankner et al. 2024, arXiv 2402.05109): Medusa's heads, each told what was drafted before.

Head k reads the hidden state beside the embeddings of the root and of the k guesses after it, so
the children of a node depend on the path that leads to it. This is plain Hydra; Hydra++'s layer of
attention over the prefix and its distillation are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eagle3.drafters.heads import DraftHeads
from eagle3.drafters.medusa import ResBlock


class Mix(nn.Module):
    """Hidden state and embeddings side by side to one hidden state; at first the first of them."""

    def __init__(self, hidden_size: int, embeddings: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size * (1 + embeddings), hidden_size)
        self.skip = nn.Linear(hidden_size * (1 + embeddings), hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        nn.init.eye_(self.skip.weight)
        nn.init.zeros_(self.skip.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + nn.functional.silu(self.linear(x))
        return out


class Hydra(DraftHeads):
    """The paper has 4 heads; the first block of each mixes the embeddings in."""

    name = "hydra"
    sequential = True
    decay = 1.0

    @staticmethod
    def blocks(k: int, hidden_size: int, layers: int) -> nn.Module:
        rest = (ResBlock(hidden_size) for _ in range(layers - 1))
        return nn.Sequential(Mix(hidden_size, k + 1), *rest)

    def state(self, k: int, hidden_RH: Tensor, tokens: Sequence[Tensor]) -> Tensor:
        read = [nn.functional.embedding(ids_R, self.embed_VH) for ids_R in tokens]
        out: Tensor = self.states[k](torch.cat([hidden_RH, *read], -1))
        return out
