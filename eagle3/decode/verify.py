"""Which drafted tokens stand: pure functions on what the target says at each node of a tree.

The tree is a deterministic function of the prefix, so each proposal is one-hot: accepting child x
with p(x), else striking x out and renormalising, leaves the target's distribution exactly as it is
(EAGLE-2's verification with q = 1 for the proposed token; Leviathan et al. 2023, appendix A.1).
It would be wrong for drafts that are themselves sampled.

Shapes: N nodes, root included; V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3.decode.sampling import draw
from eagle3.decode.tree import Tree


def accept_greedy(tree: Tree, argmax_N: list[int]) -> tuple[list[int], int]:
    """Walk from the root along the target's own choices.

    Args:
        argmax_N: the target's most likely next token at each node.

    Returns:
        The accepted nodes in order, and the token that follows the last of them.
    """
    path: list[int] = []
    node = 0
    while True:
        wanted = argmax_N[node]
        match = [child for child in tree.children[node] if tree.tokens[child - 1] == wanted]
        if not match:
            return path, wanted
        node = match[0]
        path.append(node)


def accept_sampled(tree: Tree, p_NV: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
    """Walk from the root, accepting each child with the target's probability of it.

    Args:
        p_NV: the distribution that plain decoding would sample from, at each node.

    Returns:
        The accepted nodes in order, and a token drawn from what is left at the last of them.
    """
    path: list[int] = []
    node = 0
    while True:
        p_V = p_NV[node].clone()
        accepted = _try_children(tree, tree.children[node], p_V, generator)
        if accepted is None:
            return path, draw(p_V, generator)
        node = accepted
        path.append(node)


def _try_children(
    tree: Tree, children: list[int], p_V: Tensor, generator: torch.Generator
) -> int | None:
    """The accepted child; a refused one is struck out of `p_V`, in place."""
    for child in children:
        token = tree.tokens[child - 1]
        if float(torch.rand((), generator=generator, dtype=torch.float64)) < float(p_V[token]):
            return child
        p_V[token] = 0
        p_V /= p_V.sum()
    return None
