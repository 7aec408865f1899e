"""From logits to a distribution or a choice: one definition, for plain and for draft decoding.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy and ignores the rest."""

    temperature: float = 0.0
    top_k: int | None = None
    """Keep the k most likely tokens."""
    top_p: float | None = None
    """Keep the fewest most likely tokens whose probability together reaches this."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature}: expected 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k {self.top_k}: expected 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p}: expected more than 0 and at most 1")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def probabilities(logits_NV: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that is sampled from, float64 [N, V]: temperature, top-k, then top-p.

    Tokens that tie with the k-th most likely one are all kept.
    """
    assert not sampling.is_greedy
    x_NV = logits_NV.double() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < x_NV.shape[-1]:
        least = x_NV.topk(sampling.top_k).values[..., -1:]
        x_NV = x_NV.masked_fill(x_NV < least, -torch.inf)
    p_NV = x_NV.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        sorted_NV, order_NV = p_NV.sort(dim=-1, descending=True, stable=True)
        before_NV = sorted_NV.cumsum(-1) - sorted_NV
        dropped = torch.zeros_like(p_NV, dtype=torch.bool)
        dropped.scatter_(-1, order_NV, before_NV >= sampling.top_p)
        p_NV = p_NV.masked_fill(dropped, 0)
        p_NV = p_NV / p_NV.sum(-1, keepdim=True)
    return p_NV


def draw(p_V: Tensor, generator: torch.Generator) -> int:
    """One token from a distribution."""
    return int(torch.multinomial(p_V, 1, generator=generator))
