"""A tree whose shape is fixed before decoding: which ranks of guesses are worth a node (Medusa).

A node is named by its path: (0, 2) is the third guess after the first guess. Paths are in order of
depth, so a parent comes before its children.

Shapes: K depths, I ranks, F nodes that are expanded, J nodes that are expanded down to there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from eagle3.decode.tree import Tree

Path = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The shape of a static tree."""

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        if list(self.paths) != sorted({*self.paths}, key=_order):
            raise ValueError(f"paths {self.paths}: expected each once, in order of depth")
        if any(path[:-1] and path[:-1] not in self.index for path in self.paths):
            raise ValueError(f"paths {self.paths}: a node's parent is missing")

    @classmethod
    def chain(cls, depth: int) -> Layout:
        return cls(tuple((0,) * n for n in range(1, depth + 1)))

    @cached_property
    def index(self) -> dict[Path, int]:
        """The node of each path, from 1; 0 is the root."""
        return {path: node for node, path in enumerate(self.paths, start=1)}

    @cached_property
    def parents(self) -> list[int]:
        return [self.index[path[:-1]] if len(path) > 1 else 0 for path in self.paths]

    @cached_property
    def levels(self) -> list[list[int]]:
        """Nodes at each depth, from 1."""
        depth = max(map(len, self.paths), default=0)
        return [
            [node for path, node in self.index.items() if len(path) == n]
            for n in range(1, depth + 1)
        ]

    @cached_property
    def expanded(self) -> list[list[int]]:
        """Nodes whose children stand at each depth, from 1."""
        return [sorted({self.parents[node - 1] for node in level}) for level in self.levels]

    @cached_property
    def places(self) -> list[list[int]]:
        """For the nodes at each depth, which of the nodes expanded is their parent."""
        return [
            [expanded.index(self.parents[node - 1]) for node in level]
            for expanded, level in zip(self.expanded, self.levels, strict=True)
        ]

    @cached_property
    def sources(self) -> list[list[int]]:
        """For the nodes expanded after each depth, which of those expanded before is their
        parent."""
        return [
            [before.index(self.parents[node - 1]) for node in nodes]
            for before, nodes in pairwise(self.expanded)
        ]

    @cached_property
    def seen(self) -> list[Tensor]:
        """For the nodes expanded after each depth, boolean [F, J]: which of all nodes that were
        expanded after the root each of them sees."""
        found, read = [], list[int]()
        for nodes in self.expanded[1:]:
            read += nodes
            found.append(torch.tensor([[node in self.lines[n] for node in read] for n in nodes]))
        return found

    @cached_property
    def ranks(self) -> list[list[int]]:
        """For the nodes at each depth, the rank of their guess among those of their parent."""
        return [[self.paths[node - 1][-1] for node in level] for level in self.levels]

    @property
    def depth(self) -> int:
        return len(self.levels)

    @cached_property
    def lines(self) -> list[list[int]]:
        """The nodes from the root to each node, both included; the root's own first."""
        lines = [[0]]
        for node, parent in enumerate(self.parents, start=1):
            lines.append([*lines[parent], node])
        return lines

    @cached_property
    def width(self) -> int:
        """Guesses that are needed at a node, at most."""
        return 1 + max((path[-1] for path in self.paths), default=-1)

    def nodes(self, room: int) -> int:
        """How many nodes are not deeper than `room`; they come first."""
        return sum(len(level) for level in self.levels[:room])

    def tree(self, tokens: list[int]) -> Tree:
        """The tree of the first nodes, given their tokens."""
        return Tree(tokens, self.parents[: len(tokens)])


def best_layout(accuracy_KI: Tensor, nodes: int) -> Layout:
    """The tree with the most expected accepted tokens (Medusa, section 2.3.3).

    A node is accepted about as often as the product of its path's accuracies; the nodes with the
    largest products are taken, and a node's product never exceeds its parent's.

    Args:
        accuracy_KI: how often the guess of rank i at depth k is right, given that those before are.
    """
    accuracy = accuracy_KI.tolist()
    heap: list[tuple[float, Path, float]] = []

    def offer(path: Path, before: float) -> None:
        """Put a path up for choice; `before` is its parent's product."""
        depth, rank = len(path) - 1, path[-1]
        if depth < len(accuracy) and rank < len(accuracy[depth]):
            heapq.heappush(heap, (-before * accuracy[depth][rank], path, before))

    offer((0,), 1.0)
    chosen: list[Path] = []
    while heap and len(chosen) < nodes:
        value, path, before = heapq.heappop(heap)
        chosen.append(path)
        offer((*path[:-1], path[-1] + 1), before)
        offer((*path, 0), -value)
    return Layout(tuple(sorted(chosen, key=_order)))


def _order(path: Path) -> tuple[int, Path]:
    return len(path), path
