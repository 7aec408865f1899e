"""Trees of every shape along the target's own greedy answers, without running the target again.

A round of greedy speculation accepts exactly the drafted nodes that agree with the answer. So one
tree a row, grown as wide and deep as any shape asks for, tells what each smaller one would accept:
a shape keeps the best `total` of the nodes down to its `depth`.

Shapes: L tokens of an answer with its prompt, B answers, H hidden size, 3H the captured features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.bench.metrics import Counts
from eagle3.data.records import Response
from eagle3.decode.tree import Shape, Tree
from eagle3.draft import Draft, DraftCache
from eagle3.drafters.grow import grow
from eagle3.plan import drafted_nodes
from eagle3.target import Target


@dataclass(frozen=True)
class KnownAnswer:
    """A prompt and the target's greedy answer to it."""

    ids: list[int]
    start: int
    """Where the answer begins."""
    features_L3H: Tensor


@torch.inference_mode()
def read_answers(target: Target, responses: Sequence[Response]) -> list[KnownAnswer]:
    """The first answers of conversations, read by the target."""
    found = []
    for response in responses:
        start, end = response.spans[0]
        ids = torch.tensor([response.ids[:end]], device=target.device)
        _, features = target.forward(ids, target.new_cache(end), capture=True)
        assert features is not None
        found.append(KnownAnswer(response.ids[:end], start, features[0]))
    return found


Ranks = list[list[int]]
"""Of a row: for the m-th node that agrees with the answer, and each depth limit from m on, how many
nodes a tree must keep to have it."""


@dataclass(frozen=True)
class Grown:
    """What trees of `top_k` children a node hold of known answers."""

    top_k: int
    depth: int
    rows: list[list[Ranks]]
    """By answer, and token of the answer that the tree is grown after."""

    def counts(self, shape: Shape) -> Counts:
        """Rounds and tokens of a shape that is no deeper, as the engine would count them."""
        assert shape.top_k == self.top_k
        assert shape.depth <= self.depth
        total = Counts()
        for rows in self.rows:
            at = 0
            while at < len(rows):
                room = min(shape.depth, len(rows) - at - 1)
                emitted = self._accepted(rows[at], room, shape) + 1
                total.rounds += 1
                total.tokens += emitted
                at += emitted
        return total

    def _accepted(self, ranks: Ranks, depth: int, shape: Shape) -> int:
        """Nodes on the path that agrees, of those that a tree of this depth keeps."""
        if depth < 1:
            return 0
        kept = drafted_nodes(depth, shape.top_k, shape.total)
        here = [by_depth[depth - m] for m, by_depth in enumerate(ranks[:depth], start=1)]
        return next((m for m, needed in enumerate(here) if needed > kept), len(here))


@torch.inference_mode()
def grow_along(draft: Draft, answers: Sequence[KnownAnswer], depth: int, top_k: int) -> Grown:
    """Grow the whole pool of a tree after every token of the answers but the last.

    Answers are gone through from the end, all at once: what the draft writes of its guesses lies
    behind every row that is still to come.
    """
    shape = Shape(depth, top_k, drafted_nodes(depth, top_k, 1 << 30))
    longest = max(len(answer.ids) for answer in answers)
    cache = DraftCache(longest + depth * top_k, len(answers))
    outs = [_true_rows(draft, answer, cache, line) for line, answer in enumerate(answers)]
    counts = [max(0, len(answer.ids) - answer.start - 1) for answer in answers]
    rows: list[list[Ranks]] = [[] for _ in answers]
    for back in range(1, max(counts, default=0) + 1):
        at = [
            answer.start - 1 + max(0, n - back) for answer, n in zip(answers, counts, strict=True)
        ]
        cache.rollback(*(row + 1 for row in at))
        roots_BH = torch.stack([out_LH[row] for out_LH, row in zip(outs, at, strict=True)])
        room = [depth if back <= n else 0 for n in counts]
        trees = grow(draft, roots_BH, cache, shape, room)
        for line, tree in enumerate(trees):
            if room[line]:
                follows = answers[line].ids[at[line] + 2 :]
                rows[line].append(_ranks(tree, follows, depth))
    return Grown(top_k, depth, [list(reversed(found)) for found in rows])


def _true_rows(draft: Draft, answer: KnownAnswer, cache: DraftCache, line: int) -> Tensor:
    """Run the draft over an answer's true features into a line of the cache: its outputs [L-1, H].

    Row i reads the feature of token i and token i + 1.
    """
    count = len(answer.ids) - 1
    device = answer.features_L3H.device
    ids_L = torch.tensor(answer.ids[1:], device=device)
    fused_LH = draft.fuse(answer.features_L3H[:-1])
    out_LH = draft(ids_L, fused_LH, torch.arange(count, device=device), cache, line=line)
    cache.settle([range(count)], line)
    return out_LH


def _ranks(tree: Tree, follows: Sequence[int], depth: int) -> Ranks:
    """Ranks of the nodes on the path that agrees with what follows."""
    ranks: Ranks = []
    node, depths = 0, tree.depths
    for token in follows[:depth]:
        match = [child for child in tree.children[node] if tree.tokens[child - 1] == token]
        if not match:
            break
        node = match[0]
        before = depths[1:node]
        ranks.append(
            [1 + sum(d <= limit for d in before) for limit in range(depths[node], depth + 1)]
        )
    return ranks
