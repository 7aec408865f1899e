"""The tree that is chosen for drafts whose acceptance is known in advance."""

from __future__ import annotations

import pytest
import torch

from eagle3.bench.choose import TOP_KS, Choice, candidates, choose, shapes
from eagle3.bench.cost import Costs, measure_costs
from eagle3.bench.simulate import KnownAnswer, grow_along, read_answers
from eagle3.config import BenchmarkConfig
from eagle3.data.records import Response
from eagle3.decode.tree import Shape
from eagle3.errors import BadInput
from tests.golden import Golden, golden_draft, golden_target, successor_scores

FREE = Costs(dict.fromkeys(range(1, 65), 1.0), dict.fromkeys((1, 2, 4, 8), (0.0, 0.01)))
"""Rows cost nothing, as on a GPU that waits for memory; a draft step costs a little."""
BY_ROWS = Costs({n: float(n) for n in range(1, 65)}, FREE.draft_s)
"""Each row costs what a forward costs."""


@pytest.fixture(scope="module")
def golden() -> Golden:
    return golden_target()


def answers(golden: Golden, *lengths: int) -> list[KnownAnswer]:
    responses = [
        Response(
            id=str(n),
            split="heldout",
            ids=[n, golden.perm[n], *golden.chain(golden.perm[n], length)],
            spans=[(2, 2 + length)],
            finish="length",
        )
        for n, length in enumerate(lengths)
    ]
    return read_answers(golden.target, responses)


def chosen(golden: Golden, scores: torch.Tensor, costs: Costs) -> Choice:
    draft = golden_draft(golden.target, scores)
    known = answers(golden, 25, 17, 9)
    return choose(draft, known, costs, shapes(range(1, 5), (1, 2, 4)))


def test_always_right_is_the_deepest_chain(golden: Golden) -> None:
    choice = chosen(golden, successor_scores(golden.perm), FREE)
    assert choice.best.shape == Shape(4, 1, 4)
    # 24 + 16 + 8 tokens; five a round, and a last round that the end cuts short
    assert choice.best.tau == pytest.approx(48 / (5 + 4 + 2))
    assert choice.best.round_s == pytest.approx(1.04)
    assert not choice.plain_is_best


def test_right_at_the_second_guess_is_a_tree(golden: Golden) -> None:
    scores = successor_scores(golden.perm) + 1.1 * successor_scores(golden.perm, shift=1)
    choice = chosen(golden, scores, FREE)
    assert choice.best.shape.top_k > 1
    assert choice.best.tau > 2
    chains = [p for p in choice.predictions if p.shape.top_k == 1]
    assert [p.tau for p in chains] == [1.0] * 4
    assert "a tree" in choice.said()


def test_never_right_says_that_plain_is_best(golden: Golden) -> None:
    wrong = [(1 - n / 10) * successor_scores(golden.perm, shift=3 + n) for n in range(4)]
    choice = chosen(golden, sum(wrong, torch.zeros(48, 48)), FREE)
    assert choice.best.tau == 1.0
    assert choice.plain_is_best
    assert choice.record()["plain_is_best"] is True
    assert choice.said().startswith("plain decoding is fastest here")


def test_where_rows_cost_a_forward_each_nothing_beats_plain(golden: Golden) -> None:
    assert chosen(golden, successor_scores(golden.perm), BY_ROWS).plain_is_best


def test_bookkeeping_counts_on_both_sides() -> None:
    costs = Costs({1: 1.0, 4: 1.5}, {1: (0.1, 0.2)}, other_s=0.5)
    assert costs.plain_s == 1.5
    assert costs.round_s(Shape(2, 1)) == pytest.approx(1.5 + 0.1 + 2 * 0.2 + 0.5)


@pytest.mark.parametrize("shape", [Shape(1, 2, 2), Shape(2, 2, 3), Shape(3, 4, 8), Shape(3, 4, 36)])
def test_a_smaller_tree_is_cut_from_the_largest(golden: Golden, shape: Shape) -> None:
    """Growing the shape itself gives the same rounds."""
    torch.manual_seed(0)
    draft = golden_draft(golden.target, torch.rand(48, 48) + successor_scores(golden.perm))
    known = answers(golden, 30, 12, 21)
    cut = grow_along(draft, known, 4, shape.top_k).counts(shape)
    own = grow_along(draft, known, shape.depth, shape.top_k).counts(shape)
    assert (cut.tokens, cut.rounds) == (own.tokens, own.rounds)
    assert cut.tokens == 29 + 11 + 20


def test_shapes_are_trees_that_exist() -> None:
    found = shapes((1, 2), (1, 2), totals=(1, 2, 5, 6, 7))
    assert found == [
        Shape(1, 1, 1), Shape(2, 1, 2),
        Shape(1, 2, 1), Shape(1, 2, 2), Shape(2, 2, 2), Shape(2, 2, 5), Shape(2, 2, 6),
    ]  # fmt: skip


def test_settings_leave_shapes_open() -> None:
    everything = BenchmarkConfig(depth="auto", top_k="auto", total_tokens="auto")
    found = candidates(everything, 3)
    assert {shape.top_k for shape in found} == set(TOP_KS)
    assert max(shape.depth for shape in found) == 3
    assert Shape(3, 1, 3) in found
    chains = candidates(BenchmarkConfig(depth="auto"), 2)
    assert [shape.kept for shape in chains] == [1, 2]
    fixed = candidates(BenchmarkConfig(depth=2, top_k="auto", total_tokens=6), 2)
    assert [shape.top_k for shape in fixed] == [1, 2, 4, 8]
    with pytest.raises(BadInput, match="fits no tree"):
        candidates(BenchmarkConfig(depth="auto", top_k=2, total_tokens=99), 3)


def test_answers_of_one_token_cannot_choose(golden: Golden) -> None:
    draft = golden_draft(golden.target, successor_scores(golden.perm))
    with pytest.raises(ValueError, match="two tokens"):
        choose(draft, answers(golden, 1), FREE, shapes((1,), (1,)))


def test_costs_are_measured_for_every_shape(golden: Golden) -> None:
    draft = golden_draft(golden.target, successor_scores(golden.perm))
    wanted = shapes((1, 3), (1, 2))
    costs = measure_costs(golden.target, draft, [1, 2, 3], wanted)
    assert set(costs.draft_s) == {1, 2}
    assert all(0 < costs.verifying_s(shape) < costs.round_s(shape) for shape in wanted)
    assert costs.plain_s > costs.target_s[1]
