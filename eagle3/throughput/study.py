"""Which draft length suits which load: predicted from a few points, then measured.

The cost model is fitted to few cells; what it calls best under each load is measured and joins
them, until every choice is a measured one. So a wrong model costs runs, not speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from eagle3.throughput.cost import CostModel, fit
from eagle3.throughput.lab import Lab
from eagle3.throughput.samples import Cell, Samples

TOLERANCE = 0.05
"""Of the best: how near a choice must come, or half the runs' interval where that is more."""

Ranges = list[tuple[int, int, int]]
"""First and last number of sequences, and the draft length for them."""


@dataclass(frozen=True)
class Grid:
    """What is asked: every draft length at every concurrency, and perhaps at some rates."""

    concurrency: tuple[int, ...]
    drafted: tuple[int, ...]
    """With 0, the target alone."""
    rates: tuple[float, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        return [Cell(k, n) for n in self.concurrency for k in self.drafted]

    @property
    def open_cells(self) -> list[Cell]:
        return [Cell(k, rate=rate) for rate in self.rates for k in self.drafted]

    @property
    def few(self) -> list[Cell]:
        """The ends and the middle of the concurrencies, with no draft and the ends of its lengths:
        what lies between is predicted, nothing beyond."""
        return [Cell(k, n) for n in self.ends for k in (0, *_two(self.drafted))]

    @property
    def ends(self) -> list[int]:
        """Lowest, middle and highest concurrency."""
        ordered = sorted(self.concurrency)
        return sorted({ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]})


@dataclass(frozen=True)
class Choice:
    """The draft length for a concurrency."""

    concurrency: int
    drafted: int
    """0: no draft."""
    predicted: float
    """Relative throughput, as the model said before it was measured; of a fitted cell, the fit."""
    measured: tuple[float, float, float]
    """Relative throughput, and its interval."""

    @property
    def as_predicted(self) -> bool:
        value, low, high = self.measured
        return abs(self.predicted - value) <= max(TOLERANCE * value, (high - low) / 2)


@dataclass(frozen=True)
class Best:
    """The best cell of the whole grid under one concurrency, and whether the choice is as good."""

    concurrency: int
    drafted: int
    measured: tuple[float, float, float]
    tolerance: float
    reached: bool


@dataclass(frozen=True)
class Study:
    """What was found."""

    model: CostModel
    fitted: tuple[Cell, ...]
    """Cells that the model has seen: the few, and every choice."""
    predicted: Mapping[Cell, float]
    """Relative throughput of each cell of the grid, as said before that cell was seen."""
    choices: tuple[Choice, ...]
    ranges: Ranges
    best: tuple[Best, ...]
    """None where the whole grid was not measured."""

    @property
    def switch_off(self) -> int | None:
        """From so many sequences on no draft is used; None where the last range has one."""
        first, _, drafted = self.ranges[-1]
        return None if drafted else first


def study(lab: Lab, grid: Grid, whole: bool) -> Study:
    """Measure, predict, choose, and measure what was chosen.

    Args:
        whole: measure every cell of the grid first, and say how near the choices come to its best;
            the model sees no more of it than the few cells and its own choices.
    """
    samples = lab.samples
    lab.measure(grid.cells if whole else grid.few)
    acceptance = {
        n: samples.acceptance(c for c in grid.few if c.concurrency == n) for n in grid.ends
    }
    seen = set(grid.few)
    predicted: dict[Cell, float] = {}
    while True:
        points = [samples.point(cell) for cell in sorted(seen)]
        model = fit(points, lab.plan.output_tokens, acceptance)
        for cell in grid.cells:
            if cell not in seen or cell not in predicted:
                predicted[cell] = model.relative(cell.concurrency or 1, cell.drafted)
        chosen = {n: _fastest(n, grid, samples, seen, predicted) for n in grid.concurrency}
        unseen = {cell for best in chosen.values() for cell in (best, best.plain)} - seen
        if not unseen:
            break
        if not whole:
            lab.measure(unseen)
        seen |= unseen
    lab.measure(grid.open_cells)
    choices = tuple(
        Choice(n, cell.drafted, predicted[cell], samples.relative(cell))
        for n, cell in chosen.items()
    )
    return Study(
        model=model,
        fitted=tuple(sorted(seen)),
        predicted=predicted,
        choices=choices,
        ranges=ranges({choice.concurrency: choice.drafted for choice in choices}, model),
        best=tuple(_best(choice, grid, samples) for choice in choices) if whole else (),
    )


def _fastest(
    n: int, grid: Grid, samples: Samples, seen: set[Cell], predicted: Mapping[Cell, float]
) -> Cell:
    """By what was measured where it was, by the model elsewhere; the shorter of two alike."""

    def relative(cell: Cell) -> float:
        if cell.drafted == 0:
            return 1.0
        return samples.relative(cell)[0] if cell in seen else predicted[cell]

    cells = [Cell(k, n) for k in grid.drafted]
    return max(cells, key=lambda cell: (relative(cell), -cell.drafted))


def _best(choice: Choice, grid: Grid, samples: Samples) -> Best:
    n = choice.concurrency
    measured = {k: samples.relative(Cell(k, n)) for k in grid.drafted}
    drafted = max(measured, key=lambda k: measured[k][0])
    value, low, high = measured[drafted]
    halves = [(high - low) / 2, (choice.measured[2] - choice.measured[1]) / 2]
    tolerance = max(TOLERANCE * value, *halves)
    reached = choice.measured[0] >= value - tolerance
    return Best(n, drafted, measured[drafted], tolerance, reached)


def ranges(drafted: Mapping[int, int], model: CostModel) -> Ranges:
    """Draft lengths for every number of sequences, from those at some.

    Between two of them the length changes where the model says that the next one's is faster.
    """
    loads = sorted(drafted)
    found: Ranges = []
    for n, following in zip(loads, [*loads[1:], loads[-1] + 1], strict=True):
        here = drafted[n]
        there = drafted.get(following, here)
        change = next(
            (
                m
                for m in range(n + 1, following)
                if model.tokens_per_s(m, there) > model.tokens_per_s(m, here)
            ),
            following,
        )
        begin = 1 if n == loads[0] else n
        for first, last, k in ((begin, change - 1, here), (change, following - 1, there)):
            if found and found[-1][2] == k and last >= first:
                found[-1] = (found[-1][0], last, k)
            elif last >= first:
                found.append((first, last, k))
    return found


def break_even(relative: Mapping[int, float]) -> float | None:
    """The concurrency at which a draft stops paying: where throughput relative to plain decoding
    falls through 1, between two measured ones on a scale of powers of two.

    None where it never does, or is below from the start.
    """
    loads = sorted(relative)
    for n, following in pairwise(loads):
        a, b = relative[n], relative[following]
        if a > 1 >= b:
            return float(2 ** (log2(n) + (log2(following) - log2(n)) * (a - 1) / (a - b)))
    return None


def _two(drafted: Sequence[int]) -> list[int]:
    lengths = sorted(k for k in drafted if k)
    return sorted({lengths[0], lengths[-1]})
