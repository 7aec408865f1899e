"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target guesses for itself.

A window holds W columns of N - 1 levels. Level 0 guesses the tokens after the root, column by
column (column 0 is the root itself); the token at (level l, column w) is what the target said after
(l - 1, w) in an earlier round, a Jacobi iteration. What it says after the highest level completes W
n-grams, one a column. They go to a pool, and those that begin with the root are verified.

All of this is one tree of guesses: level 0 is a chain from the root, the parent of (l, w) is
(l - 1, w), and the n-grams are further branches from the root. Equal tokens after equal tokens are
one node. So window tokens may be accepted as well, which the paper does not try.

Rounds as in the authors' code: while levels are missing each round adds one and drops a column;
then each round moves the window one token on, however many were accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Tree

Ngram = tuple[int, ...]


@dataclass(frozen=True)
class Lookahead:
    """The settings: W, N and G of the paper, which takes 15, 5 and 15 for targets of 7B."""

    window: int = 15
    """Columns (W)."""
    ngram: int = 5
    """Tokens of an n-gram (N), the one that it is looked up by included."""
    guesses: int = 15
    """N-grams of a token that are kept, and verified (G)."""
    from_text: bool = False
    """Whether the n-grams of the prompt and of the answer go to the pool too."""

    name = "lookahead"
    capture_layers = None
    reads_hidden = False
    lossless = True

    def __post_init__(self) -> None:
        if self.window < 1 or self.ngram < 2 or self.guesses < 1:
            raise ValueError(f"{self}: expected window >= 1, ngram >= 2 and guesses >= 1")

    @property
    def most_nodes(self) -> int:
        first = self.window + self.ngram - 3
        window = max(first - k + k * (first - k + 1) for k in range(self.ngram - 1))
        return window + self.guesses * (self.ngram - 1)

    def session(self, slots: int, capacity: int) -> LookaheadSession:
        return LookaheadSession(self)


class Pool:
    """N-grams by their first token; of each token the last ones that were seen."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: dict[int, dict[Ngram, None]] = {}

    def add(self, token: int, rest: Ngram) -> None:
        kept = self.found.setdefault(token, {})
        kept.pop(rest, None)
        kept[rest] = None
        if len(kept) > self.most:
            del kept[next(iter(kept))]

    def after(self, token: int) -> Iterator[Ngram]:
        """What followed a token, the last seen first."""
        return reversed(self.found.get(token, {}))


class Branches:
    """A tree that grows by paths; what two paths share is there once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.nodes: dict[tuple[int, int], int] = {}
        """Node by its parent and token."""

    def child(self, parent: int, token: int) -> int:
        node = self.nodes.setdefault((parent, token), len(self.tokens) + 1)
        if node > len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return node


class Window:
    """The state of one sequence: the window, the pool and what was proposed last."""

    def __init__(
        self, settings: Lookahead, prompt_ids: Sequence[int], generator: torch.Generator
    ) -> None:
        self.settings = settings
        self.pool = Pool(settings.guesses)
        self.text = list(prompt_ids[:1])
        columns = settings.window + settings.ngram - 3
        drawn = torch.randint(len(prompt_ids), (max(0, columns),), generator=generator)
        self.levels = [[prompt_ids[i] for i in drawn.tolist()]]
        """Tokens by level and column; level 0 has no column 0, which is the root."""
        self.tops: list[int] = []
        """Nodes of the highest level that were proposed last, by column."""

    def propose(self, room: int) -> Tree:
        """Columns that would reach beyond the room are dropped for good: it only shrinks."""
        branches = Branches()
        for rest in self.pool.after(self.text[-1]):
            node = 0
            for token in rest[:room]:
                node = branches.child(node, token)
        columns = max(0, room - len(self.levels) + 2)
        self.levels = [level[: max(0, columns - (n == 0))] for n, level in enumerate(self.levels)]
        self.tops = [0]
        for token in self.levels[0]:
            self.tops.append(branches.child(self.tops[-1], token))
        for level in self.levels[1:]:
            above = zip(self.tops, level, strict=False)  # no column left: the root stands alone
            self.tops = [branches.child(node, token) for node, token in above]
        return Tree(branches.tokens, branches.parents)

    def observe(self, seen: Seen) -> None:
        if seen.choices_N and self.tops:
            self._move([seen.choices_N[node] for node in self.tops])
        self._extend(seen.next_ids)

    def _move(self, said: list[int]) -> None:
        """Take in what the target said after the highest level, by column."""
        if len(self.levels) < self.settings.ngram - 1:
            self.levels = [level[1:] for level in [*self.levels, said]]
            return
        levels = [[self.text[-1], *self.levels[0]], *self.levels[1:], said]
        for token, *rest in zip(*levels, strict=True):
            self.pool.add(token, tuple(rest))
        self.levels = [levels[1][1:], *levels[2:]]

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text.append(token)
            if self.settings.from_text and len(self.text) >= self.settings.ngram:
                first, *rest = self.text[-self.settings.ngram :]
                self.pool.add(first, tuple(rest))


class LookaheadSession:
    """A window per slot."""

    def __init__(self, settings: Lookahead) -> None:
        self.settings = settings
        self.windows: dict[int, Window] = {}

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        self.windows[slot] = Window(self.settings, prompt_ids, generator)

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        return {slot: Proposal(self.windows[slot].propose(depth)) for slot, depth in room.items()}

    def observe(self, seen: Mapping[int, Seen]) -> None:
        for slot, rows in seen.items():
            self.windows[slot].observe(rows)

    def close(self, slot: int) -> None:
        del self.windows[slot]
