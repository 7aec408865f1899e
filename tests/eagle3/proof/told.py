"""Drafting methods for tests: one is told what the target will say, one draws at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import EMPTY, Tree


@dataclass
class Remembering:
    """What both have in common: they read the text, and nothing of the target."""

    capture_layers = None
    reads_hidden = False
    lossless = True
    most_nodes = 8
    texts: dict[int, list[int]] = field(default_factory=dict)
    generators: dict[int, torch.Generator] = field(default_factory=dict)

    def session(self, slots: int, capacity: int) -> Self:
        return self

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        self.texts[slot], self.generators[slot] = list(prompt_ids[:1]), generator

    def observe(self, seen: Mapping[int, Seen]) -> None:
        for slot, rows in seen.items():
            self.texts[slot] += rows.next_ids

    def close(self, slot: int) -> None:
        del self.texts[slot], self.generators[slot]


@dataclass
class Told(Remembering):
    """A tree with the right tokens behind wrong ones, so that accepted rows have to be moved."""

    right: list[list[int]] = field(default_factory=list)
    """Whole texts, prompts included."""
    vocab: int = 0
    name = "told"

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        return {slot: Proposal(self._tree(self.texts[slot], most)) for slot, most in room.items()}

    def _tree(self, text: list[int], room: int) -> Tree:
        for whole in self.right:
            if whole[: len(text)] == text and len(text) < len(whole):
                coming = whole[len(text) : len(text) + min(room, 3)]
                break
        else:
            return EMPTY
        tokens, parents, above = [], [], 0
        for token in coming:
            tokens += [(token + 1) % self.vocab, token]
            parents += [above, above]
            above = len(tokens)
        return Tree(tokens, parents)


@dataclass
class Drawn(Remembering):
    """A chain of two guesses drawn from one distribution, whatever the text."""

    q_V: torch.Tensor = field(default_factory=lambda: torch.ones(1))
    name = "drawn"

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        found = {}
        for slot, most in room.items():
            depth, generator = min(most, 2), self.generators[slot]
            tokens = self.q_V.multinomial(depth, replacement=True, generator=generator).tolist()
            tree = Tree(tokens, list(range(depth)))
            found[slot] = Proposal(tree, self.q_V.expand(depth, -1))
        return found
