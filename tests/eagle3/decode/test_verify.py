"""Acceptance on hand-made trees, and the distribution that sampling leaves."""

from __future__ import annotations

import math

import pytest
import torch

from eagle3.decode.sampling import Sampling, probabilities
from eagle3.decode.tree import EMPTY, Tree
from eagle3.decode.verify import Typical, accept_greedy, accept_sampled, accept_typical

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


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_drawn_chain_leaves_the_targets_distribution(one_hot: bool) -> None:
    """Two tokens over a vocabulary of 5, the guesses drawn from another distribution, as above.

    Taken for one-hot, the same guesses leave it too, but fewer of them are accepted.
    """
    generator = torch.Generator().manual_seed(3)
    p = torch.rand(6, 5, generator=generator, dtype=torch.float64) ** 2
    q = torch.rand(6, 5, generator=generator, dtype=torch.float64) ** 2
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)  # row 5 follows the root
    counts = torch.zeros(5, 5, dtype=torch.float64)
    accepted, draws = 0, 20_000
    for _ in range(draws):
        first = int(torch.multinomial(q[5], 1, generator=generator))
        second = int(torch.multinomial(q[first], 1, generator=generator))
        tree = Tree([first, second], [0, 1])
        q_nodes = None if one_hot else q[[5, first]]
        path, bonus = accept_sampled(tree, p[[5, first, second]], generator, q_nodes)
        accepted += len(path) > 0
        emitted = [*(tree.tokens[n - 1] for n in path), bonus]
        if len(emitted) == 1:
            emitted.append(int(torch.multinomial(p[bonus], 1, generator=generator)))
        counts[emitted[0], emitted[1]] += 1
    exact = p[5][:, None] * p[:5]
    assert float((counts / draws - exact).abs().sum()) / 2 < 0.02
    rate = (p[5] * q[5] if one_hot else p[5].minimum(q[5])).sum()
    assert accepted / draws == pytest.approx(float(rate), abs=0.015)


def test_a_certain_token_is_always_accepted() -> None:
    p = torch.zeros(5, 5, dtype=torch.float64)
    p[0, 2] = p[2, 0] = p[4, 3] = 1.0
    assert accept_sampled(TREE, p, torch.Generator().manual_seed(0)) == ([2, 4], 3)


@pytest.mark.parametrize(
    ("p", "stands"),
    [
        ([0.5, 0.3, 0.1, 0.08, 0.02], [True, True, True, False, False]),  # epsilon: 0.09
        ([0.2] * 5, [True] * 5),  # 0.3 exp(-H) is 0.06
        ([0.34, 0.33, 0.2, 0.085, 0.045], [True, True, True, True, False]),  # and here 0.074
    ],
)
def test_typical_acceptance_is_that_of_its_paper(p: list[float], stands: list[bool]) -> None:
    p_V = torch.tensor(p, dtype=torch.float64)
    entropy = -sum(x * math.log(x) for x in p)
    assert [x > min(0.09, 0.3 * math.exp(-entropy)) for x in p] == stands
    assert Typical().stands(p_V).tolist() == stands


def test_typical_acceptance_takes_the_longest_path_that_stands() -> None:
    """Node 1 leads to node 3, node 2 to node 4."""
    rows = torch.full((5, 5), 0.2, dtype=torch.float64)
    sure = torch.zeros(5, dtype=torch.float64)
    sure[3] = 1.0
    generator = torch.Generator().manual_seed(0)
    for node, path in ((2, [1, 3]), (1, [2, 4]), (0, [])):  # from there, only token 3 stands
        p_NV = rows.clone()
        p_NV[node] = p_NV[3] = p_NV[4] = sure
        if node == 1:
            p_NV[1, 3] = 0.0
            p_NV[1, 4] = 1.0
        assert accept_typical(TREE, p_NV, generator, Typical()) == (path, 3)


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
