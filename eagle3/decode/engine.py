"""The decoding loop: draft a tree, verify it in one target forward, keep what stands.

Plain decoding is the same loop with an empty tree, so both run the same code, sample alike and stop
alike. Shapes: P prompt tokens, N nodes of a tree (root included), H hidden size, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from eagle3.decode.sampling import Sampling, draw, probabilities
from eagle3.decode.tree import EMPTY, Drafter, Shape, Tree, grow
from eagle3.decode.verify import accept_greedy, accept_sampled
from eagle3.draft import DraftCache
from eagle3.target import Target


@dataclass
class Timings:
    """Where decoding time went, in seconds."""

    target: float = 0.0
    """Target forwards, with the head and the choice of tokens."""
    draft: float = 0.0
    """Growing trees and running the draft over true features."""
    other: float = 0.0


@dataclass
class Generation:
    """One decoded prompt. The first token comes from the prefill; all counts are of the rest."""

    tokens: list[int]
    """New tokens, an EOS included."""
    rounds: int = 0
    """Target forwards of the decode phase."""
    reached: list[int] = field(default_factory=list)
    """Rounds in which a token was drafted at depth n + 1 and all before it were accepted."""
    accepted: list[int] = field(default_factory=list)
    """Of these, the rounds in which a token at depth n + 1 was accepted and emitted."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    timings: Timings = field(default_factory=Timings)
    finish: Literal["eos", "length"] = "length"

    @property
    def decoded(self) -> int:
        """Tokens of the decode phase."""
        return len(self.tokens) - 1


class Decoder:
    """Decodes one prompt at a time, with a draft or without one.

    Raises:
        ValueError: the draft reads features of other layers than the target captures.
    """

    def __init__(
        self, target: Target, draft: Drafter | None = None, shape: Shape | None = None
    ) -> None:
        if draft is not None and draft.capture_layers != target.capture_layers:
            raise ValueError(
                f"the draft reads features of layers {draft.capture_layers}; the target captures "
                f"{target.capture_layers}: load the target with the draft's layers"
            )
        self.target, self.draft, self.shape = target, draft, shape or Shape()

    @torch.inference_mode()
    def generate(
        self,
        prompt_ids: list[int],
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> Generation:
        """Decode until an EOS, which is the last token then, or `max_new_tokens`."""
        if not prompt_ids or max_new_tokens < 1:
            raise ValueError("a prompt of one token or more and max_new_tokens >= 1 are needed")
        started = time.perf_counter()
        run = _Run(self, prompt_ids, max_new_tokens, eos_ids, sampling or Sampling(), seed)
        run.prefill(prompt_ids)
        prefilled = time.perf_counter()
        while not run.finished:
            run.round()
        out = run.out
        out.prefill_s = prefilled - started
        out.decode_s = time.perf_counter() - prefilled
        out.timings.other = out.decode_s - out.timings.target - out.timings.draft
        return out


class _Run:
    """The state of one decoded prompt."""

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: list[int],
        max_new_tokens: int,
        eos_ids: Collection[int],
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.target, self.draft, self.shape = decoder.target, decoder.draft, decoder.shape
        self.max_new_tokens, self.eos_ids, self.sampling = max_new_tokens, set(eos_ids), sampling
        self.device = self.target.device
        self.generator = torch.Generator().manual_seed(seed)
        tokens = len(prompt_ids) + max_new_tokens
        self.cache = self.target.new_cache(tokens + self.shape.kept + 1)
        self.draft_cache = DraftCache(tokens + self.shape.depth * self.shape.top_k + 1)
        self.root_out_H: Tensor | None = None
        depth = self.shape.depth if self.draft is not None else 0
        self.out = Generation([], reached=[0] * depth, accepted=[0] * depth)

    @property
    def finished(self) -> bool:
        return self.out.finish == "eos" or len(self.out.tokens) >= self.max_new_tokens

    def prefill(self, prompt_ids: list[int]) -> None:
        hidden, features = self.target.forward(
            self._ids(prompt_ids)[None], self.cache, capture=self.draft is not None
        )
        self.cache.advance(len(prompt_ids))
        logits_1V = self.target.logits(hidden[0, -1:])
        if self.sampling.is_greedy:
            token = int(logits_1V.argmax(-1))
        else:
            token = draw(probabilities(logits_1V, self.sampling)[0].cpu(), self.generator)
        self._emit(token)
        if features is not None and not self.finished:
            self._feed(features[0], [*prompt_ids[1:], token])

    def round(self) -> None:
        """One target forward: the root and what was drafted after it."""
        clock = time.perf_counter()
        tree = self._grow()
        drafted = time.perf_counter()
        (path, bonus), features = self._verify(tree)
        self.out.rounds += 1
        self.cache.keep([0, *path])
        verified = time.perf_counter()
        tokens = [*(tree.tokens[node - 1] for node in path), bonus]
        self._count(tree, path, self._emit(*tokens))
        if features is not None and not self.finished:
            fed = time.perf_counter()
            self._feed(features[0, [0, *path]], tokens)
            self.out.timings.draft += time.perf_counter() - fed
        self.out.timings.draft += drafted - clock
        self.out.timings.target += verified - drafted

    def _grow(self) -> Tree:
        """A tree no deeper than what may still be emitted before the round's own last token."""
        room = self.max_new_tokens - len(self.out.tokens) - 1
        if self.draft is None or self.root_out_H is None or room < 1:
            return EMPTY
        shape = self.shape
        if room < shape.depth:
            shape = Shape(room, shape.top_k, shape.total)
        return grow(self.draft, self.root_out_H, self.draft_cache, shape)

    def _verify(self, tree: Tree) -> tuple[tuple[list[int], int], Tensor | None]:
        past = self.cache.length
        plain = tree.is_chain  # positions and mask are then those of ordinary rows
        hidden, features = self.target.forward(
            self._ids([self.out.tokens[-1], *tree.tokens])[None],
            self.cache,
            positions_BL=None if plain else past + self._ids(tree.depths)[None],
            mask=None if plain else tree.mask(past)[None, None].to(self.device),
            capture=self.draft is not None,
        )
        logits_NV = self.target.logits(hidden[0])
        if self.sampling.is_greedy:
            return accept_greedy(tree, logits_NV.argmax(-1).tolist()), features
        p_NV = probabilities(logits_NV, self.sampling).cpu()
        return accept_sampled(tree, p_NV, self.generator), features

    def _feed(self, features_T3H: Tensor, next_ids: list[int]) -> None:
        """Run the draft over true features; what it made of its own guesses is gone by now."""
        assert self.draft is not None
        start, rows = self.draft_cache.length, len(next_ids)
        positions_T = torch.arange(start, start + rows, device=self.device)
        outs_TH = self.draft(
            self._ids(next_ids), self.draft.fuse(features_T3H), positions_T, self.draft_cache
        )
        self.draft_cache.advance(rows)
        self.root_out_H = outs_TH[-1]

    def _emit(self, *tokens: int) -> int:
        """Append tokens up to a stop; returns how many."""
        for count, token in enumerate(tokens, start=1):
            self.out.tokens.append(token)
            if token in self.eos_ids:
                self.out.finish = "eos"
            if self.finished:
                return count
        return len(tokens)

    def _count(self, tree: Tree, path: list[int], emitted: int) -> None:
        """Count drafted and accepted positions, none beyond a stop."""
        for n, node in enumerate([0, *path][:emitted]):
            if not tree.children[node]:
                return
            self.out.reached[n] += 1
            self.out.accepted[n] += n < len(path)

    def _ids(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, device=self.device)
