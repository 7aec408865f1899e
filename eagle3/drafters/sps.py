"""Speculative sampling with a small model of the target's tokenizer (Leviathan et al. 2023, arXiv
2211.17192; Chen et al. 2023, arXiv 2302.01318): it drafts a chain, one token a forward.

At temperature 0 the chain is greedy. Above, each token is drawn from the small model's own
distribution q, made from its logits by the very steps that make the target's (`sampling`), and q is
handed on: a guess stands with probability min(1, p / q).

What the small model read of its guesses stays in its cache as far as they stood.

Shapes: B lines of the cache, R new rows, N nodes of a tree, H hidden size, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.sampling import Prefix, Sampling, choices, draw, probabilities
from eagle3.decode.tree import Tree
from eagle3.target import Target


@dataclass(frozen=True)
class Speculative:
    """A small causal LM, and how far it drafts."""

    lm: Target
    vocab_size: int
    """The target's. The small model may have another number of rows for unused ids."""
    length: int = 4
    """Tokens that are drafted (4 in Chen et al.)."""

    name = "sps"
    capture_layers = None
    reads_hidden = False
    lossless = True

    @classmethod
    def of(cls, model: Any, vocab_size: int, length: int = 4) -> Self:
        """From a model of transformers; no features are captured, so a single layer will do."""
        return cls(Target(model, (0, 0, 0)), vocab_size, length)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length {self.length}: expected a draft of 1 token or more")

    @property
    def most_nodes(self) -> int:
        return self.length

    def session(self, slots: int, capacity: int) -> SpeculativeSession:
        return SpeculativeSession(self, slots, capacity)


@dataclass
class _Text:
    """One sequence."""

    tokens: list[int]
    """All of it, the root included."""
    prefix: Prefix
    sampling: Sampling
    generator: torch.Generator
    logits_V: Tensor | None = None
    """What the small model says after the root."""


class SpeculativeSession:
    """A text and a line of the small model's cache for each open slot."""

    def __init__(self, drafter: Speculative, slots: int, capacity: int) -> None:
        self.lm, self.vocab_size, self.length = drafter.lm, drafter.vocab_size, drafter.length
        self.cache = self.lm.new_cache(capacity + self.length, slots, in_use=False)
        self.texts: dict[int, _Text] = {}

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        self.cache.open(slot)
        self.texts[slot] = _Text(list(prompt_ids[:1]), Prefix(prompt_ids), sampling, generator)

    @torch.inference_mode()
    def close(self, slot: int) -> None:
        self.cache.close(slot)
        del self.texts[slot]

    def observe(self, seen: Mapping[int, Seen]) -> None:
        """Read what is new: all lines from the first to the last of these slots, in one forward."""
        lines = sorted(self.cache.slots.index(slot) for slot in seen)
        slots = self.cache.slots[lines[0] : lines[-1] + 1]
        lengths = list(self.cache.lengths)
        news = []
        for line, slot in enumerate(slots, start=lines[0]):
            if slot in seen:
                lengths[line] = self._extend(self.texts[slot], seen[slot], lengths[line])
            news.append(self.texts[slot].tokens[lengths[line] :] if slot in seen else [])
        self.cache.rollback(*lengths)
        logits_BV = self._read(news, lines[0])
        for slot, logits_V in zip(slots, logits_BV, strict=True):
            if slot in seen:
                self.texts[slot].logits_V = logits_V

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        slots, texts = self.cache.slots, self.texts
        stands = zip(slots, self.cache.lengths, strict=True)  # no guess that nobody looked at
        self.cache.rollback(*[min(rows, len(texts[slot].tokens)) for slot, rows in stands])
        depths = {slot: min(depth, self.length) for slot, depth in room.items()}
        chains = {slot: _Chain(texts[slot]) for slot in room}
        logits = {slot: texts[slot].logits_V for slot in room}
        for depth in range(max(depths.values(), default=0)):
            for slot, chain in chains.items():
                if depth < depths[slot]:
                    chain.draft(logits[slot])
            reading = {slot for slot in room if depth + 1 < depths[slot]}
            if reading:
                news = [chains[slot].tokens[-1:] if slot in reading else [] for slot in slots]
                logits = dict(zip(slots, self._read(news), strict=True))
        return {slot: chain.proposal() for slot, chain in chains.items()}

    @staticmethod
    def _extend(text: _Text, rows: Seen, length: int) -> int:
        """Take new tokens in; returns how many rows of the cache stand."""
        fresh = rows.next_ids if length else rows.next_ids[-1:]  # the prompt is counted already
        text.prefix.extend(fresh)
        stands = min(length, len(text.tokens) + len(rows.ids) - 1)
        text.tokens += rows.next_ids
        return stands

    def _read(self, news: Sequence[Sequence[int]], line: int = 0) -> Tensor:
        """Read new tokens of these lines, in parts whose scores stay small; returns what follows
        the last of each, [B, V]."""
        rows = max(map(len, news))
        ids_BR = torch.tensor(
            [[*new, *[0] * (rows - len(new))] for new in news], device=self.lm.device
        ).clamp(max=self.lm.vocab_size - 1)  # an id that it does not have is read as another
        hidden, at_once = [], self.lm.rows_at_once(len(news), rows)
        for start in range(0, rows, at_once):
            part = slice(start, start + at_once)
            hidden.append(self.lm.forward(ids_BR[:, part], self.cache, line=line)[0])
            self.cache.settle([range(len(new[part])) for new in news], line)
        hidden_BRH = torch.cat(hidden, 1)
        last_B = torch.tensor([len(new) - 1 for new in news], device=self.lm.device)
        lines_B = torch.arange(len(news), device=self.lm.device)
        logits_BV = self.lm.logits(hidden_BRH[lines_B, last_B])[:, : self.vocab_size]
        missing = self.vocab_size - logits_BV.shape[1]
        return torch.nn.functional.pad(logits_BV, (0, missing), value=-torch.inf)


class _Chain:
    """Tokens that are drafted after a text."""

    def __init__(self, text: _Text) -> None:
        self.text = text
        self.prefix = text.prefix.followed_by(())
        self.tokens: list[int] = []
        self.q: list[Tensor] = []

    def draft(self, logits_V: Tensor | None) -> None:
        assert logits_V is not None, "a slot that has observed nothing"
        sampling = self.text.sampling
        if sampling.is_greedy:
            token = choices(logits_V[None], sampling, self.prefix)[0]
        else:
            self.q.append(probabilities(logits_V[None], sampling, self.prefix)[0].cpu())
            token = draw(self.q[-1], self.text.generator)
        self.tokens.append(token)
        self.prefix.extend([token])

    def proposal(self) -> Proposal:
        return Proposal(Tree.chain(self.tokens), torch.stack(self.q) if self.q else None)
