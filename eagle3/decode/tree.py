"""The dynamic draft tree (EAGLE-2, section 4; a chain is a tree of width one).

A node is one drafted token; node 0 is the root, the last token that was emitted. A node's value is
the log-probability of its path from the root under the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from eagle3.plan import drafted_nodes


@dataclass(frozen=True, slots=True)
class Shape:
    """How a tree is grown."""

    depth: int = 3
    """Drafted tokens on the longest path."""
    top_k: int = 1
    """Children of a node, and nodes that are expanded in a round."""
    total: int | None = None
    """Drafted nodes that are kept; depth * top_k when empty."""

    def __post_init__(self) -> None:
        if self.depth < 1 or self.top_k < 1 or (self.total is not None and self.total < 1):
            raise ValueError(f"{self}: depth, top_k and total must be 1 or more")

    @property
    def kept(self) -> int:
        return drafted_nodes(self.depth, self.top_k, self.total)


@dataclass(frozen=True)
class Tree:
    """Drafted nodes in order of value; a parent always comes before its children."""

    tokens: list[int]
    """Target ids of nodes 1, 2, …"""
    parents: list[int]
    """Parent of each of these nodes; 0 is the root."""

    @classmethod
    def chain(cls, tokens: list[int]) -> Tree:
        return cls(tokens, list(range(len(tokens))))

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node, root first, in draft order (the likeliest first)."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents, start=1):
            found[parent].append(node)
        return found

    @cached_property
    def depths(self) -> list[int]:
        """Depth of each node, the root's 0 first."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """The tokens from the root's child to a node."""
        tokens: list[int] = []
        while node:
            tokens.append(self.tokens[node - 1])
            node = self.parents[node - 1]
        return tokens[::-1]

    @property
    def is_chain(self) -> bool:
        return self.parents == list(range(len(self.parents)))

    @property
    def seen(self) -> Tensor:
        """Boolean [nodes, nodes], root first: a node sees its ancestors and itself."""
        return _seen(tuple(self.parents))


@lru_cache(maxsize=256)  # chains and trees of one form come again each round
def _seen(parents: tuple[int, ...]) -> Tensor:
    seen_NN = np.eye(len(parents) + 1, dtype=bool)
    for node, parent in enumerate(parents, start=1):
        seen_NN[node] |= seen_NN[parent]
    return torch.from_numpy(seen_NN)


EMPTY = Tree([], [])


def best(tokens: list[int], parents: list[int], values: list[float], total: int) -> Tree:
    """The `total` best nodes of a pool (node i of the pool is `tokens[i - 1]`).

    A child's value never exceeds its parent's, and of equal values the earlier node wins, so the
    parent of a kept node is kept.
    """
    order = sorted(range(len(tokens)), key=lambda i: -values[i])[:total]
    renamed = {0: 0} | {old + 1: new for new, old in enumerate(order, start=1)}
    return Tree([tokens[i] for i in order], [renamed[parents[i]] for i in order])
