"""Which drafted tokens stand: pure functions on what the target says at each node of a tree.

Where the tree is a deterministic function of the prefix, each proposal is one-hot: accepting child
x with p(x), else striking x out and renormalising, leaves the target's distribution exactly as it
is (EAGLE-2's verification with q = 1 for the proposed token). More is accepted of guesses that
were themselves drawn, from a q that is known: x with min(1, p(x) / q(x)), else a token is drawn
from what p has more than q, renormalised (Leviathan et al. 2023, section 2.3, appendix A.1). There
the draws must be honest: a guess picked in another way would bend the distribution.

Typical acceptance is the one rule here that is not exact. It is for a method that asks for it.

Shapes: N nodes, root included; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3.decode.sampling import draw
from eagle3.decode.tree import Tree


def accept_greedy(tree: Tree, argmax_N: Sequence[int]) -> tuple[list[int], int]:
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


class Rows(Protocol):
    """A tensor [N, V], or what makes a row of one when it is asked for."""

    def __getitem__(self, node: int, /) -> Tensor: ...


def accept_sampled(
    tree: Tree, p_NV: Rows, generator: torch.Generator, q_NV: Tensor | None = None
) -> tuple[list[int], int]:
    """Walk from the root, accepting so that the output has the target's distribution.

    Args:
        p_NV: the distribution that plain decoding would sample from, at each node.
        q_NV: the distribution that each guess of a chain was drawn from, [N - 1, V]; None where
            guesses are one-hot.

    Returns:
        The accepted nodes in order, and a token drawn from what is left at the last of them.
    """
    assert q_NV is None or tree.is_chain
    path: list[int] = []
    node = 0
    while True:
        p_V = p_NV[node].clone()
        if q_NV is None:
            accepted = _try_children(tree, tree.children[node], p_V, generator)
        else:
            accepted = _try_drawn(tree, node, p_V, q_NV, generator)
        if accepted is None:
            return path, draw(p_V, generator)
        node = accepted
        path.append(node)


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical acceptance (Medusa, section 2.3.1, with its values). *Lossy*: likely guesses stand
    more often than the target would say them, and the output's distribution is another."""

    epsilon: float = 0.09
    """A guess that is likelier than this always stands."""
    delta: float = 0.3
    """Where the target is unsure, one that is likelier than this times exp(-entropy) does."""

    def stands(self, p_V: Tensor) -> Tensor:
        """Which tokens would be accepted, boolean [V]."""
        entropy = torch.special.entr(p_V).sum()
        return p_V > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)


def accept_typical(
    tree: Tree, p_NV: Rows, generator: torch.Generator, rule: Typical
) -> tuple[list[int], int]:
    """The longest path of guesses that stand, in draft order where two are as long, and a token
    drawn at the last of them. Arguments and result as of `accept_sampled`."""
    longest: list[int] = []
    waiting: list[list[int]] = [[]]
    while waiting:
        path = waiting.pop()
        longest = max(longest, path, key=len)
        children = tree.children[path[-1] if path else 0]
        if children:
            stands_V = rule.stands(p_NV[path[-1] if path else 0])
            standing = [child for child in children if stands_V[tree.tokens[child - 1]]]
            waiting += [[*path, child] for child in reversed(standing)]
    return longest, draw(p_NV[longest[-1] if longest else 0], generator)


def _try_drawn(
    tree: Tree, node: int, p_V: Tensor, q_NV: Tensor, generator: torch.Generator
) -> int | None:
    """The next node of a chain, where it is accepted; else `p_V` becomes what it has over q."""
    if node == len(tree.tokens):
        return None
    token, q_V = tree.tokens[node], q_NV[node].to(p_V)
    if _uniform(generator) * float(q_V[token]) < float(p_V[token]):
        return node + 1
    rest_V = (p_V - q_V).clamp(min=0)
    if float(rest_V.sum()) > 0:  # else p and q are the same but for rounding
        p_V.copy_(rest_V / rest_V.sum())
    return None


def _try_children(
    tree: Tree, children: list[int], p_V: Tensor, generator: torch.Generator
) -> int | None:
    """The accepted child; a refused one is struck out of `p_V`, in place."""
    for child in children:
        token = tree.tokens[child - 1]
        if _uniform(generator) < float(p_V[token]):
            return child
        p_V[token] = 0
        p_V /= p_V.sum()
    return None


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))
