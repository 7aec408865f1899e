"""The cost model and the choices against laws that are known."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import pytest

from eagle3.engines.engine import Settings
from eagle3.throughput.cost import Acceptance, CostModel, Point, fit
from eagle3.throughput.lab import Lab, Plan
from eagle3.throughput.load import Own
from eagle3.throughput.samples import Cell, Samples
from eagle3.throughput.study import Grid, break_even, ranges, study
from tests.eagle3.throughput.fake import Law, LawfulEngine, acceptance, sample_of

LENGTH = 64
GRID = Grid((1, 2, 4, 8, 16, 32, 64), (0, 1, 2, 3, 5))
CARD = Law()
"""Flat until 64 rows, as a GPU that waits for memory."""
CORES = Law(fixed=0.004, drafted=0.002, drafting=0.001, rows=0.009, beyond=0.0, first_each=0.01)
"""Each row costs, as on a CPU: a draft never pays."""
ROOMY = Law(knee=4096, at=(0.8, 0.65, 0.52, 0.42, 0.34))
"""No load within the grid is too much."""


def _points(law: Law, cells: Collection[Cell]) -> list[Point]:
    found = []
    for cell in cells:
        n, k = cell.concurrency or 1, cell.drafted
        first = law.first + law.first_each * n
        found.append(Point(n, k, law.tokens_per_s(n, k, LENGTH), first, law.tau(k)))
    return found


def test_a_point_gives_back_the_time_of_its_round() -> None:
    for point in _points(CARD, GRID.cells):
        expected = CARD.round_s(point.sequences, point.drafted)
        assert point.round_s(LENGTH) == pytest.approx(expected)


@pytest.mark.parametrize("law", [CARD, CORES, ROOMY])
def test_a_law_of_its_own_form_is_found_again(law: Law) -> None:
    model = fit(_points(law, GRID.cells), LENGTH, acceptance(law))
    for cell in GRID.cells:
        n, k = cell.concurrency or 1, cell.drafted
        assert model.round_s(n, k) == pytest.approx(law.round_s(n, k), rel=1e-3)
        assert model.relative(n, k) == pytest.approx(law.relative(n, k, LENGTH), rel=1e-3)


def test_few_points_predict_the_rest_of_a_line() -> None:
    assert len(GRID.few) == 9
    model = fit(_points(CORES, GRID.few), LENGTH, acceptance(CORES))
    for cell in GRID.cells:
        n, k = cell.concurrency or 1, cell.drafted
        assert model.relative(n, k) == pytest.approx(CORES.relative(n, k, LENGTH), rel=0.02)


def test_no_part_of_a_round_is_negative() -> None:
    odd = [Point(1, 0, 100, 0, 1.0), Point(1, 1, 190, 0, 1.5), Point(8, 0, 900, 0, 1.0)]
    assert min(fit(odd, LENGTH, {1: Acceptance((0.5,))}).parts) >= 0


def test_acceptance_goes_on_as_it_did() -> None:
    found = Acceptance((0.6, 0.3))
    assert found.tau(0) == 1
    assert found.tau(2) == pytest.approx(1.9)
    assert found.tau(4) == pytest.approx(1.9 + 0.15 + 0.075)
    assert Acceptance(()).tau(0) == 1


def test_acceptance_that_falls_with_load() -> None:
    points = _points(CARD, GRID.few)
    model = fit(points, LENGTH, {1: Acceptance((0.9,)), 4: Acceptance((0.5,))})
    assert [model.tau(n, 1) for n in (1, 2, 4, 64)] == pytest.approx([1.9, 1.7, 1.5, 1.5])


class _Told(Lab):
    """A lab whose runs take no time: the law says what they give."""

    def __init__(self, law: Law, noise: float = 0.0) -> None:
        engine = LawfulEngine(law)
        plan = Plan([[1]], LENGTH)
        super().__init__(engine, Path(), Path(), Settings(), plan, Own(), Path())
        self.law, self.noise, self.random = law, noise, random.Random(1)
        self.asked: list[Cell] = []

    def measure(self, wanted: Collection[Cell]) -> None:
        self.asked += wanted
        for _ in range(self.plan.rounds if wanted else 0):
            slow = 1 + 0.3 * self.random.random()  # a moment of the machine: all runs of a turn
            for cell in {*wanted, *(cell.plain for cell in wanted)}:
                noise = slow * self.noisy(cell)
                self.samples.all.append(sample_of(self.law, self._turn, cell, LENGTH, noise))
            self._turn += 1

    def noisy(self, cell: Cell) -> float:
        return self.random.gauss(1, self.noise)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("law", [CARD, CORES, ROOMY])
def test_choices_come_near_the_best_of_the_grid(law: Law, noise: float) -> None:
    lab = _Told(law, noise)
    found = study(lab, GRID, whole=False)
    for choice in found.choices:
        n = choice.concurrency
        best = max(law.relative(n, k, LENGTH) for k in GRID.drafted)
        assert law.relative(n, choice.drafted, LENGTH) >= best * 0.95
    assert len(set(lab.asked)) < len(GRID.cells)  # that is what the model is for
    assert {Cell(c.drafted, c.concurrency) for c in found.choices} <= set(found.fitted)


def test_a_slow_moment_falls_on_both_sides() -> None:
    lab = _Told(CARD)
    lab.measure([Cell(3, 4)])
    value, low, high = lab.samples.relative(Cell(3, 4))
    assert value == pytest.approx(CARD.relative(4, 3, LENGTH))
    assert high - low < 1e-9


def test_the_whole_grid_judges_the_choices() -> None:
    found = study(_Told(CARD), GRID, whole=True)
    assert [best.reached for best in found.best] == [True] * 7
    for best in found.best:
        assert best.measured[0] == pytest.approx(
            max(CARD.relative(best.concurrency, k, LENGTH) for k in GRID.drafted)
        )


@pytest.mark.parametrize("steady", [True, False])
def test_a_choice_that_misses_the_best_is_as_good_only_within_half_the_interval(
    steady: bool,
) -> None:
    """A length that the model has not seen is faster than all that it knows leads to expect."""

    class Lucky(Law):
        def round_s(self, n: int, k: int) -> float:
            return super().round_s(n, k) * (0.85 if (n, k) == (2, 2) else 1.0)

    class Unsteady(_Told):
        def noisy(self, cell: Cell) -> float:
            spread = (1.2, 1.0, 1.0, 1.0, 0.8)
            return spread[self._turn] if cell == Cell(2, 2) and not steady else 1.0

    found = study(Unsteady(Lucky()), GRID, whole=True)
    best = {one.concurrency: one for one in found.best}
    chosen = {choice.concurrency: choice for choice in found.choices}
    assert (best[2].drafted, chosen[2].drafted) == (2, 3)
    assert chosen[2].measured[0] == pytest.approx(best[2].measured[0] * 0.87, abs=0.02)
    assert [one.reached for one in found.best] == [True, not steady, *[True] * 5]


def test_where_a_draft_stops_paying() -> None:
    found = study(_Told(CARD), GRID, whole=True)
    assert found.switch_off is not None
    assert CARD.relative(found.switch_off - 1, 1, LENGTH) > 0.99
    assert CARD.relative(found.switch_off, 1, LENGTH) < 1.03
    assert [drafted for *_, drafted in found.ranges] == sorted(
        (drafted for *_, drafted in found.ranges), reverse=True
    )
    assert study(_Told(CORES), GRID, whole=False).ranges == [(1, 64, 0)]
    assert study(_Told(CORES), GRID, whole=False).switch_off == 1


def test_a_model_that_promises_too_much_is_found_out() -> None:
    """A law with a step that no part of the model has: what was chosen is measured, and dropped."""

    class Stepped(Law):
        def round_s(self, n: int, k: int) -> float:
            return super().round_s(n, k) * (2.0 if n in (2, 4, 16, 32) and k else 1.0)

    lab = _Told(Stepped())
    found = study(lab, GRID, whole=False)
    chosen = {choice.concurrency: choice.drafted for choice in found.choices}
    assert [chosen[n] for n in (2, 4, 16, 32)] == [0, 0, 0, 0]
    assert chosen[1] > 0
    assert chosen[8] > 0


def test_ranges_change_where_the_model_says() -> None:
    model = fit(_points(CARD, GRID.cells), LENGTH, acceptance(CARD))
    found = ranges({1: 3, 32: 1, 64: 0}, model)
    assert [drafted for *_, drafted in found] == [3, 1, 0]
    assert found[0][0] == 1
    assert found[-1][1] == 64
    for (_, end, here), (begin, _, there) in pairwise(found):
        assert begin == end + 1
        assert CARD.tokens_per_s(begin, there, LENGTH) >= CARD.tokens_per_s(begin, here, LENGTH)
        assert CARD.tokens_per_s(end, there, LENGTH) <= CARD.tokens_per_s(end, here, LENGTH)
    assert ranges({2: 1, 4: 1}, model) == [(1, 4, 1)]


def test_break_even_lies_between_two_loads() -> None:
    assert break_even({1: 1.5, 4: 1.2, 16: 0.8}) == pytest.approx(8)
    assert break_even({1: 1.5, 4: 1.2}) is None
    assert break_even({1: 0.9, 4: 0.8}) is None


def test_acceptance_of_a_position_is_that_of_the_runs_that_drafted_it() -> None:
    samples = Samples(sample_of(CARD, 0, Cell(k, 1), LENGTH) for k in (0, 1, 3))
    assert samples.acceptance(samples.cells()).at == pytest.approx((0.6, 0.35, 0.2))


def test_a_model_is_of_something() -> None:
    with pytest.raises(ValueError, match="points"):
        fit([], LENGTH, {1: Acceptance(())})


def test_predictions_are_made_before_a_cell_is_seen() -> None:
    lab = _Told(CARD)
    found = study(lab, GRID, whole=False)
    later = [cell for cell in found.fitted if cell not in GRID.few]
    assert later
    points = [lab.samples.point(cell) for cell in sorted(GRID.few)]
    first: CostModel = fit(points, LENGTH, acceptance(CARD))
    asked_second = [c for c in lab.asked[len(GRID.few) :] if c.drafted]
    cell = asked_second[0]
    expected = first.relative(cell.concurrency or 1, cell.drafted)
    assert found.predicted[cell] == pytest.approx(expected, rel=0.02)
