"""Acceptance on hand-made trees, and the distribution that sampling leaves."""

from __future__ import annotations

import pytest
import torch

from eagle3.decode.sampling import Sampling, probabilities
from eagle3.decode.tree import EMPTY, Tree
from eagle3.decode.verify import accept_greedy, accept_sampled

TREE = Tree(tokens=[1, 2, 3, 0], parents=[0, 0, 1, 2])


@pytest.mark.parametrize(
    ("argmax", "expected"),
    [
        ([4, 4, 4, 4, 4], ([], 4)),
        ([1, 4, 0, 4, 4], ([1], 4)),
        ([1, 3, 0, 2, 4], ([1, 3], 2)),
        ([2, 3, 0, 2, 1], ([2, 4], 1)),
    ],
)
def test_greedy_takes_the_longest_matching_path(
    argmax: list[int], expected: tuple[list[int], int]
) -> None:
    assert accept_greedy(TREE, argmax) == expected


def test_an_empty_tree_gives_the_targets_token() -> None:
    assert accept_greedy(EMPTY, [7]) == ([], 7)


def test_sampling_leaves_the_targets_distribution() -> None:
    """Two tokens over a vocabulary of 5, 20,000 draws: total variation below 0.02.

    The expected total variation of that many draws over 25 cells is about 0.012.
    """
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(5, 5, generator=generator, dtype=torch.float64)
    p /= p.sum(-1, keepdim=True)  # p[t] follows token t; p[4] follows the root
    tokens = [4, *TREE.tokens]
    p_nodes = p[tokens]
    counts = torch.zeros(5, 5, dtype=torch.float64)
    draws = 20_000
    for _ in range(draws):
        path, bonus = accept_sampled(TREE, p_nodes, generator)
        emitted = [*(TREE.tokens[n - 1] for n in path), bonus]
        if len(emitted) == 1:
            emitted.append(int(torch.multinomial(p[bonus], 1, generator=generator)))
        counts[emitted[0], emitted[1]] += 1
    exact = p[4][:, None] * p
    assert float((counts / draws - exact).abs().sum()) / 2 < 0.02


def test_a_certain_token_is_always_accepted() -> None:
    p = torch.zeros(5, 5, dtype=torch.float64)
    p[0, 2] = p[2, 0] = p[4, 3] = 1.0
    assert accept_sampled(TREE, p, torch.Generator().manual_seed(0)) == ([2, 4], 3)


def test_temperature_top_k_and_top_p() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert probabilities(logits, Sampling(1.0))[0].tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert probabilities(logits, Sampling(0.5))[0, 0] == pytest.approx(0.16 / 0.30)
    assert probabilities(logits, Sampling(1.0, top_k=2))[0].tolist() == pytest.approx(
        [4 / 7, 3 / 7, 0, 0]
    )
    assert probabilities(logits, Sampling(1.0, top_p=0.65))[0].tolist() == pytest.approx(
        [4 / 7, 3 / 7, 0, 0]
    )
    assert probabilities(logits, Sampling(1.0, top_p=0.71))[0, 3] == 0
