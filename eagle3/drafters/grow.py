"""Grow draft trees with a network, those of all sequences in one forward a depth (EAGLE-2,
section 4.1): the best nodes of a depth are expanded into the next.

Shapes: B sequences, T rows, F nodes that are expanded, W children of each, J rows of guesses that
the draft has read, H hidden size, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3.decode.attention import visible
from eagle3.decode.tree import EMPTY, Shape, Tree, best
from eagle3.draft import DraftCache, LayerDraft


@torch.inference_mode()
def grow(
    draft: LayerDraft,
    root_out_BH: Tensor,
    cache: DraftCache,
    shape: Shape,
    room_B: Sequence[int] | None = None,
) -> list[Tree]:
    """Draft a tree for every line of the cache from the output of its last row of true features.

    Rows of the draft's own guesses are written after the cache's and rolled back at the end.

    Args:
        room_B: how deep each tree may be, 0 for none; the shape's depth when empty.
    """
    starts = list(cache.lengths)
    start_B1 = torch.tensor(starts, device=root_out_BH.device)[:, None]
    deepest = min(shape.depth, max(room_B or [shape.depth]))
    pool = _Pool()
    outs_BFH, value_BF = root_out_BH[:, None], root_out_BH.new_zeros(len(starts), 1).float()
    frontier_BF = torch.zeros_like(start_B1)
    seen_BFJ: Tensor | None = None
    for depth in range(1, deepest + 1):
        log_p = draft.logits(outs_BFH).float().log_softmax(-1)
        step_BFW, ids_BFW = log_p.topk(min(shape.top_k, log_p.shape[-1]), dim=-1)
        width = ids_BFW.shape[-1]
        token_BC = draft.target_ids(ids_BFW).flatten(1)
        value_BC = (value_BF[:, :, None] + step_BFW).flatten(1)
        first = pool.add(token_BC, frontier_BF.repeat_interleave(width, 1), value_BC)
        if depth == deepest:
            break
        value_BF, chosen_BF = value_BC.topk(min(shape.top_k, value_BC.shape[1]), sorted=True)
        source_BF = chosen_BF // width
        if shape.top_k > 1:
            seen_BFJ = _seen(seen_BFJ, source_BF)
        outs_BFH = draft(
            token_BC.gather(1, chosen_BF),
            outs_BFH.gather(1, source_BF[:, :, None].expand(-1, -1, outs_BFH.shape[-1])),
            (start_B1 + depth - 1).expand(-1, chosen_BF.shape[1]),
            cache,
            None if seen_BFJ is None else visible(seen_BFJ, starts),
        )
        cache.advance(chosen_BF.shape[1])
        frontier_BF = first + chosen_BF
    cache.rollback(*starts)
    return pool.trees(shape, room_B or [shape.depth] * len(starts))


def _seen(before_BFJ: Tensor | None, source_BF: Tensor) -> Tensor:
    """Guesses that the next frontier sees: what each node's parent sees, and the node itself."""
    batch, rows = source_BF.shape
    own_BFF = torch.eye(rows, dtype=torch.bool, device=source_BF.device).expand(batch, -1, -1)
    if before_BFJ is None:
        return own_BFF
    past_BFJ = before_BFJ.gather(1, source_BF[:, :, None].expand(-1, -1, before_BFJ.shape[2]))
    return torch.cat([past_BFJ, own_BFF], -1)


class _Pool:
    """All nodes that were drafted, in order of depth."""

    def __init__(self) -> None:
        self.sizes = [0]
        """Nodes down to each depth."""
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, token_BC: Tensor, parent_BC: Tensor, value_BC: Tensor) -> int:
        """Take the nodes of the next depth; returns the number of the first one."""
        self._parts.append((token_BC, parent_BC, value_BC))
        self.sizes.append(self.sizes[-1] + token_BC.shape[1])
        return self.sizes[-2] + 1

    def trees(self, shape: Shape, room_B: Sequence[int]) -> list[Tree]:
        tokens, parents, values = (
            torch.cat(parts, 1).tolist() for parts in zip(*self._parts, strict=True)
        )
        return [
            _cut(shape, room, self.sizes, tokens[b], parents[b], values[b])
            for b, room in enumerate(room_B)
        ]


def _cut(
    shape: Shape,
    room: int,
    sizes: list[int],
    tokens: list[int],
    parents: list[int],
    values: list[float],
) -> Tree:
    """The best tree of the nodes that are no deeper than there is room for."""
    if room < 1:
        return EMPTY
    depth = min(room, shape.depth)
    n = sizes[depth]
    kept = Shape(depth, shape.top_k, shape.total).kept
    return best(tokens[:n], parents[:n], values[:n], kept)
