"""One target forward over the roots and guesses of several sequences, each at its own place.

Shapes: B sequences, N nodes of the largest tree (root included), T nodes of all trees, H hidden
size, 3H the three captured features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.decode.attention import visible
from eagle3.decode.cache import RollbackCache
from eagle3.decode.tree import Tree
from eagle3.target import Target


@dataclass(frozen=True)
class Said:
    """What the target says at each node."""

    logits: list[Tensor]
    """[N, V] of each sequence."""
    largest: list[list[int]]
    """The ids of the largest logits."""
    hidden_BNH: Tensor
    features_BN3H: Tensor | None


def read_trees(
    target: Target, cache: RollbackCache, roots: Sequence[int], trees: Sequence[Tree], capture: bool
) -> Said:
    """Read a root and its tree into every line of the cache; the caller says what stands.

    Smaller trees are padded with rows that nothing sees.
    """
    sizes = [len(tree.tokens) + 1 for tree in trees]
    most = max(sizes)
    ids_BN = torch.tensor(
        [
            [root, *tree.tokens, *[0] * (most - size)]
            for root, tree, size in zip(roots, trees, sizes, strict=True)
        ],
        device=target.device,
    )
    positions_BN, mask = _places(cache, trees, most, target.device)
    hidden_BNH, features_BN3H = target.forward(
        ids_BN, cache, positions_BL=positions_BN, mask=mask, capture=capture
    )
    hidden_TH = hidden_BNH.flatten(0, 1)
    if min(sizes) < most:
        real = [b * most + n for b, size in enumerate(sizes) for n in range(size)]
        hidden_TH = hidden_TH[torch.tensor(real, device=target.device)]
    logits_TV = target.logits(hidden_TH)
    largest_T = logits_TV.argmax(-1).tolist()
    ends = [sum(sizes[: b + 1]) for b in range(len(sizes))]
    return Said(
        list(logits_TV.split(sizes)),
        [largest_T[end - size : end] for end, size in zip(ends, sizes, strict=True)],
        hidden_BNH,
        features_BN3H,
    )


def _places(
    cache: RollbackCache, trees: Sequence[Tree], most: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Positions [B, N] and mask; none for chains of one length, which are ordinary text."""
    if all(tree.is_chain and len(tree.tokens) + 1 == most for tree in trees):
        return None, None
    depths = [[*tree.depths, *[0] * (most - 1 - len(tree.tokens))] for tree in trees]
    start_B = torch.tensor(cache.lengths)
    own_BNN = torch.zeros(len(trees), most, most, dtype=torch.bool)
    for own_NN, tree in zip(own_BNN, trees, strict=True):
        size = len(tree.tokens) + 1
        own_NN[:size, :size] = tree.seen
    positions_BN = (start_B[:, None] + torch.tensor(depths)).to(device)
    return positions_BN, visible(own_BNN.to(device), cache.lengths)


def read_prompt(
    target: Target, cache: RollbackCache, line: int, ids: Sequence[int], capture: bool
) -> Said:
    """Read a prompt into an empty line, in parts whose scores stay small; it stands.

    Returns:
        Hidden states and features of all rows; logits of the last one.
    """
    ids_1P = torch.tensor([ids], device=target.device)
    hidden, features = [], []
    for part_1L in ids_1P.split(target.rows_at_once(1, len(ids)), 1):
        hidden_1LH, features_1L3H = target.forward(part_1L, cache, capture=capture, line=line)
        cache.settle([range(part_1L.shape[1])], line)
        hidden.append(hidden_1LH)
        features.append(features_1L3H)
    logits_1V = target.logits(hidden[-1][0, -1:])
    return Said(
        [logits_1V],
        [logits_1V.argmax(-1).tolist()],
        torch.cat(hidden, 1),
        torch.cat([f for f in features if f is not None], 1) if capture else None,
    )
