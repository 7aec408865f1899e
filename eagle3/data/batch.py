"""Many sequences decoded together, for writing responses.

Shapes: B sequences, P prompt rows, V vocabulary, M cache rows. All sequences grow at the same row
of the cache, so shorter prompts are padded: after the S tokens with which all of them begin (a
template's system prompt), which are read in once, and before the rest.

    shared  shared  padding  own  own  | answers
    shared  shared    own    own  own  | answers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from eagle3.decode.cache import RollbackCache
from eagle3.target import Target

COMPACT_BELOW = 0.75
"""Finished sequences leave the batch once fewer than this share is still alive: dropping them
copies the cache, keeping them wastes rows."""


@dataclass
class Sequence:
    """One sequence to decode."""

    prompt: list[int]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    """Decides the sampled tokens, whatever else is in the batch."""
    answer: list[int] = field(default_factory=list)
    finish: Literal["eos", "length"] = "length"
    done: bool = False

    def take(self, token: int, end_ids: frozenset[int]) -> None:
        self.answer.append(token)
        if token in end_ids:
            self.finish = "eos"
        self.done = token in end_ids or len(self.answer) >= self.max_new_tokens


def decode_batch(
    target: Target,
    sequences: list[Sequence],
    end_ids: frozenset[int],
    on_step: Callable[[int], None] = lambda new_tokens: None,
) -> None:
    """Decode until every sequence has ended or is as long as it may get; fills in `answer`.

    Args:
        on_step: called after each step with the number of tokens it gave; it may raise.
    """
    longest = max(len(s.prompt) for s in sequences)
    capacity = longest + max(s.max_new_tokens for s in sequences)
    shared = shared_prefix([s.prompt for s in sequences])
    pad_B = torch.tensor([longest - len(s.prompt) for s in sequences], device=target.device)
    row_M = torch.arange(capacity, device=target.device)
    visible_BM = (row_M < shared) | (row_M >= shared + pad_B[:, None])
    uniform_BM = _uniform(sequences, capacity - longest)
    live = list(sequences)
    cache, logits_BV = _prefill(target, live, shared, pad_B, visible_BM)
    for step in range(capacity - longest):
        tokens = _choose(logits_BV, live, uniform_BM[:, step]).tolist()
        alive = [i for i, s in enumerate(live) if not s.done]
        for i in alive:
            live[i].take(tokens[i], end_ids)
        on_step(len(alive))
        remaining = [i for i, s in enumerate(live) if not s.done]
        if not remaining:
            return
        if len(remaining) < COMPACT_BELOW * len(live):
            rows = torch.tensor(remaining, device=target.device)
            cache.select(rows)
            pad_B, visible_BM = pad_B[rows], visible_BM[rows]
            uniform_BM = uniform_BM[rows.cpu()]
            live, tokens = [live[i] for i in remaining], [tokens[i] for i in remaining]
        hidden_BLH, _ = target.forward(
            torch.tensor(tokens, device=target.device)[:, None],
            cache,
            positions_BL=(cache.length - pad_B)[:, None],
            mask=visible_BM[:, None, None, : cache.length + 1],
        )
        cache.advance(1)
        logits_BV = target.logits(hidden_BLH[:, -1])


def shared_prefix(prompts: list[list[int]]) -> int:
    """Tokens with which all prompts begin; each keeps at least one of its own."""
    first, last = min(prompts), max(prompts)
    most = min(len(p) for p in prompts) - 1
    return next((i for i in range(most) if first[i] != last[i]), most)


def _prefill(
    target: Target, sequences: list[Sequence], shared: int, pad_B: Tensor, visible_BM: Tensor
) -> tuple[RollbackCache, Tensor]:
    """Read the prompts in; returns the cache and the last row's logits [B, V]."""
    batch, longest = len(sequences), max(len(s.prompt) for s in sequences)
    padded = [
        s.prompt[:shared] + [0] * (longest - len(s.prompt)) + s.prompt[shared:] for s in sequences
    ]
    ids_BP = torch.tensor(padded, device=target.device)
    cache = target.new_cache(visible_BM.shape[1], 1)
    for start, end in _stretches(0, shared, target.rows_at_once(1, longest)):
        target.forward(ids_BP[:1, start:end], cache)
        cache.advance(end - start)
    cache.select(torch.zeros(batch, dtype=torch.int64, device=target.device))
    row_P = torch.arange(longest, device=target.device)
    for start, end in _stretches(shared, longest, target.rows_at_once(batch, longest)):
        rows = row_P[start:end]
        seen = visible_BM[:, None, :end] & (row_P[:end] <= rows[:, None])
        # A padding row sees itself, for a softmax over nothing is not a number.
        mask = seen | (row_P[:end] == rows[:, None])
        hidden_BLH, _ = target.forward(
            ids_BP[:, start:end],
            cache,
            positions_BL=(rows[None] - pad_B[:, None]).clamp(min=0),
            mask=mask[:, None],
        )
        cache.advance(end - start)
    return cache, target.logits(hidden_BLH[:, -1])


def _stretches(start: int, end: int, rows: int) -> list[tuple[int, int]]:
    return [(i, min(i + rows, end)) for i in range(start, end, rows)]


def _uniform(sequences: list[Sequence], steps: int) -> Tensor:
    """Float64 [B, steps]: a number in [0, 1) for each token that each sequence may sample."""
    rows = []
    for s in sequences:
        generator = torch.Generator().manual_seed(s.seed)
        rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _choose(logits_BV: Tensor, sequences: list[Sequence], uniform_B: Tensor) -> Tensor:
    """The next token of each sequence [B]: the most likely one, or one drawn at temperature."""
    tokens_B = logits_BV.argmax(-1)
    sampled = [i for i, s in enumerate(sequences) if s.temperature > 0]
    if sampled:
        heat = torch.tensor([sequences[i].temperature for i in sampled], dtype=torch.float64)
        logits = logits_BV[sampled].double() / heat.to(logits_BV.device)[:, None]
        below = logits.softmax(-1).cumsum(-1)
        drawn = uniform_B[sampled].to(below.device)[:, None] * below[:, -1:]
        tokens_B[sampled] = torch.searchsorted(below, drawn, right=True)[:, 0].clamp(
            max=logits_BV.shape[-1] - 1
        )
    return tokens_B
