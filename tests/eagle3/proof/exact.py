"""The distribution of sampled text, exactly: every way that the engine's chances can fall.

A tiny target is a function from tokens to logits, so its own distribution over all texts of a
length can be written out. That of decoding with a draft can be too. The engine's own code decides
what happens (`decode/sequence.py`: logits processors, acceptance, what stands); only its chance is
replaced: where it draws a number or a token, it goes every way that has a probability, and what
comes out is weighted with the product. The two must be the same to rounding.

Shapes: V vocabulary, N nodes of a tree (root included).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from eagle3.decode import verify
from eagle3.decode.drafter import Proposal
from eagle3.decode.request import Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.sequence import NO_GUESS
from eagle3.decode.sequence import Sequence as Decoded
from eagle3.decode.tree import Tree

T = TypeVar("T")
Text = tuple[int, ...]
Distribution = dict[Text, float]
TinyTarget = Callable[[Text], Tensor]
"""Logits [V] after these tokens, the prompt included."""


@dataclass
class Fork:
    """One way through everything that is left to chance."""

    script: list[int] = field(default_factory=list)
    """What is taken at the first choices; after them the first thing possible."""
    made: list[int] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)
    """Scripts of the ways that part from this one after its script."""
    probability: float = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """One of several things, with probabilities in proportion to these weights."""
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        taken = possible[0]
        if len(self.made) < len(self.script):
            taken = self.script[len(self.made)]
        else:
            self.others += [[*self.made, other] for other in possible[1:]]
        self.made.append(taken)
        self.probability *= weights[taken] / sum(weights)
        return taken


def every_way(run: Callable[[Fork], T]) -> Iterator[tuple[T, float]]:
    """What comes out of every way, and the probability of that way."""
    scripts: list[list[int]] = [[]]
    while scripts:
        fork = Fork(scripts.pop())
        yield run(fork), fork.probability
        scripts += fork.others


class Guesser:
    """What is guessed after a text: the same tree each time."""

    def __init__(self, tree_of: Callable[[Text, int], Tree]) -> None:
        self._tree_of = tree_of

    def propose(self, text: Text, room: int, fork: Fork) -> Proposal:
        """Guesses after this text (prompt included), at most `room` deep."""
        return Proposal(self._tree_of(text, room))


class DrawnChain(Guesser):
    """A chain whose guesses are drawn, each from a distribution that depends on those before.

    Args:
        q_of: the distribution [V] after a text, float64.
    """

    def __init__(self, q_of: Callable[[Text], Tensor], depth: int) -> None:
        self._q_of, self._depth = q_of, depth

    def propose(self, text: Text, room: int, fork: Fork) -> Proposal:
        drawn: list[int] = []
        rows: list[Tensor] = []
        for _ in range(min(self._depth, room)):
            rows.append(self._q_of((*text, *drawn)))
            drawn.append(fork.choose(rows[-1].tolist()))
        return Proposal(Tree.chain(drawn), torch.stack(rows))


def with_draft(
    target: TinyTarget, guesser: Guesser, prompt: Text, sampling: Sampling, length: int
) -> Distribution:
    """The distribution of the first `length` tokens after a prompt, decoded with a draft."""
    waiting: Distribution = {(): 1.0}
    ended: Distribution = defaultdict(float)
    while waiting:
        text = min(waiting, key=len)
        mass = waiting.pop(text)
        for emitted, probability in _round(target, guesser, prompt, text, sampling, length):
            longer = (*text, *emitted)
            if len(longer) == length:
                ended[longer] += mass * probability
            else:
                waiting[longer] = waiting.get(longer, 0.0) + mass * probability
    return dict(ended)


def _round(
    target: TinyTarget, guesser: Guesser, prompt: Text, text: Text, sampling: Sampling, length: int
) -> Iterator[tuple[Text, float]]:
    """What one round of the engine emits after a text, every way."""

    def run(fork: Fork) -> Text:
        decoded = Decoded(0, 0, Request(prompt, length, sampling), len(prompt) + length)
        decoded.take(text)
        proposal = NO_GUESS
        if text and decoded.room > 0:
            proposal = guesser.propose((*prompt, *text), decoded.room, fork)
        tree = proposal.tree
        logits_NV = torch.stack([target((*prompt, *text, *path)) for path in _paths(tree)])
        with _chance(fork):
            path, token = decoded.choose(logits_NV, logits_NV.argmax(-1).tolist(), proposal)
        stands, _ = decoded.take([*(tree.tokens[node - 1] for node in path), token])
        return tuple(stands)

    return every_way(run)


def _paths(tree: Tree) -> list[Text]:
    """The drafted tokens that lead to each node, root first."""
    paths: list[Text] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    return paths


class _Uniform:
    """A number drawn from 0 to 1 that is only ever compared."""

    def __init__(self, fork: Fork, scale: float = 1.0) -> None:
        self._fork, self._scale = fork, scale

    def __mul__(self, factor: float) -> _Uniform:
        return _Uniform(self._fork, self._scale * factor)

    def __lt__(self, limit: float) -> bool:
        if self._scale == 0:
            return limit > 0
        p = min(max(limit / self._scale, 0.0), 1.0)
        return self._fork.choose([p, 1 - p]) == 0


@contextmanager
def _chance(fork: Fork) -> Iterator[None]:
    """Acceptance draws from this fork in place of a generator."""
    forked: dict[str, Callable[..., object]] = {
        "_uniform": lambda _: _Uniform(fork),
        "draw": lambda p_V, _: fork.choose(p_V.tolist()),
    }
    drawn = {name: getattr(verify, name) for name in forked}
    try:
        for name, function in forked.items():
            setattr(verify, name, function)
        yield
    finally:
        for name, function in drawn.items():
            setattr(verify, name, function)


def alone(
    target: TinyTarget,
    probabilities_of: Callable[[Tensor, Text, Text], Tensor],
    prompt: Text,
    length: int,
) -> Distribution:
    """The target's own distribution of the first `length` tokens after a prompt.

    Args:
        probabilities_of: the distribution [V] of logits [V] after a prompt and an output: a
            definition of sampling that is not the engine's.
    """
    texts: Distribution = {(): 1.0}
    for _ in range(length):
        texts = {
            (*text, token): mass * p
            for text, mass in texts.items()
            for token, p in enumerate(
                probabilities_of(target((*prompt, *text)), prompt, text).tolist()
            )
            if p > 0
        }
    return texts


def total_variation(a: Distribution, b: Distribution) -> float:
    """Half the sum of all differences: the largest difference in the probability of any event."""
    return sum(abs(a.get(text, 0.0) - b.get(text, 0.0)) for text in a.keys() | b.keys()) / 2
