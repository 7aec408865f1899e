"""The dynamic draft tree (EAGLE-2, section 4; a chain is a tree of width one).

A node is one drafted token; node 0 is the root, the last token that was emitted. A node's value is
the log-probability of its path from the root under the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from eagle3.draft import DraftCache
from eagle3.plan import drafted_nodes


class Drafter(Protocol):
    """What the engine asks of a draft (`eagle3.draft.Draft`). T rows, H hidden, Vd draft vocab."""

    @property
    def capture_layers(self) -> tuple[int, int, int]: ...

    def fuse(self, features_T3H: Tensor) -> Tensor: ...

    def __call__(
        self,
        ids_T: Tensor,
        feature_TH: Tensor,
        positions_T: Tensor,
        cache: DraftCache,
        mask_TK: Tensor | None = None,
    ) -> Tensor: ...

    def logits(self, out_TH: Tensor) -> Tensor: ...

    def target_ids(self, draft_ids: Tensor) -> Tensor: ...


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

    @property
    def is_chain(self) -> bool:
        return self.parents == list(range(len(self.parents)))

    def mask(self, past: int) -> Tensor:
        """Boolean [nodes, past + nodes]: a node sees the past, its ancestors and itself."""
        seen = torch.eye(len(self.tokens) + 1, dtype=torch.bool)
        for node, parent in enumerate(self.parents, start=1):
            seen[node] |= seen[parent]
        return torch.cat([torch.ones(len(seen), past, dtype=torch.bool), seen], dim=1)


EMPTY = Tree([], [])


def best(tokens: list[int], parents: list[int], values: list[float], total: int) -> Tree:
    """The `total` best nodes of a pool (node i of the pool is `tokens[i - 1]`).

    A child's value never exceeds its parent's, and of equal values the earlier node wins, so the
    parent of a kept node is kept.
    """
    order = sorted(range(len(tokens)), key=lambda i: -values[i])[:total]
    renamed = {0: 0} | {old + 1: new for new, old in enumerate(order, start=1)}
    return Tree([tokens[i] for i in order], [renamed[parents[i]] for i in order])


@torch.inference_mode()
def grow(draft: Drafter, root_out_H: Tensor, cache: DraftCache, shape: Shape) -> Tree:
    """Draft a tree from the output of the last row of true features.

    Rows of the draft's own guesses are written after the cache's and rolled back at the end.
    """
    start = cache.length
    tokens: list[int] = []
    parents: list[int] = []
    values: list[float] = []
    frontier = [0]
    outs_FH, frontier_values_F = root_out_H[None], root_out_H.new_zeros(1, dtype=torch.float32)
    seen: Tensor | None = None
    for depth in range(1, shape.depth + 1):
        log_p = draft.logits(outs_FH).float().log_softmax(-1)
        step_FK, ids_FK = log_p.topk(min(shape.top_k, log_p.shape[-1]), dim=-1)
        values_FK = frontier_values_F[:, None] + step_FK
        width, first = ids_FK.shape[1], len(tokens) + 1
        token_ids = draft.target_ids(ids_FK).flatten()
        tokens += token_ids.tolist()
        parents += [node for node in frontier for _ in range(width)]
        values += values_FK.flatten().tolist()
        if depth == shape.depth:
            break
        frontier_values_F, chosen_F = values_FK.flatten().topk(
            min(shape.top_k, values_FK.numel()), sorted=True
        )
        source_F = chosen_F // width
        if shape.top_k > 1:
            seen = _seen(seen, source_F, start)
        position = start + depth - 1
        outs_FH = draft(
            token_ids[chosen_F],
            outs_FH[source_F],
            torch.full_like(chosen_F, position),
            cache,
            seen,
        )
        cache.advance(len(chosen_F))
        frontier = [first + i for i in chosen_F.tolist()]
    cache.rollback(start)
    return best(tokens, parents, values, shape.kept)


def _seen(before_FK: Tensor | None, source_F: Tensor, start: int) -> Tensor:
    """Mask of the next frontier: what each node's parent sees, and the node itself."""
    rows = len(source_F)
    own = torch.eye(rows, dtype=torch.bool, device=source_F.device)
    if before_FK is None:  # the root's children see the standing rows
        past = own.new_ones(rows, start)
    else:
        past = before_FK[source_F]
    return torch.cat([past, own], dim=1)
