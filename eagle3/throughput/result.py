"""What a throughput study found: `throughput.json`, whose schema is that of `Throughput`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from eagle3.data.records import Record
from eagle3.throughput.cost import PARTS
from eagle3.throughput.lab import Lab
from eagle3.throughput.samples import Cell, Latencies, Sample
from eagle3.throughput.study import Choice, Grid, Study, break_even

LATENCIES = ("first_s", "token_s", "wait_s")


class Ratio(Record):
    """A median over the turns, and the interval of the runs (`docs/metrics.md`)."""

    value: float
    low: float
    high: float


class CellResult(Record):
    """A draft length under a load."""

    drafted: int
    concurrency: int | None
    """Answers in progress, in a closed loop."""
    rate: float | None
    """Requests a second, in an open loop."""
    runs: int
    tokens_per_s: float
    relative: Ratio
    """Throughput over plain decoding's under the same load, in the same turn."""
    predicted: float | None
    """The same, as the cost model said before it saw this cell; None in an open loop."""
    seen: bool
    """Whether the cost model was fitted to this cell, among others."""
    tau: float
    first_s: Latencies | None
    token_s: Latencies | None
    wait_s: Latencies | None


class Model(Record):
    """The cost model; `eagle3/throughput/cost.py` says what its parts are."""

    parts_s: dict[str, float]
    knee_rows: int
    first_parts_s: tuple[float, ...]
    error: float | None
    """Median error of the predictions of cells that it had not seen, as a share; None where none
    was measured."""
    worst: float | None


class ChoiceResult(Record):
    """What to serve with under a concurrency."""

    concurrency: int
    drafted: int
    predicted: float
    measured: Ratio
    as_predicted: bool
    """Within 5%, or half the runs' interval where that is more."""
    best_drafted: int | None
    """Of the whole grid; None where it was not measured."""
    best: Ratio | None
    tolerance: float | None
    """5% of the best, or half the runs' interval where that is more."""
    reached: bool | None
    """Whether the choice comes as near to the best."""


class Setup(Record):
    """What was measured on what."""

    target: str
    draft: str
    engine: str
    engine_version: str
    generator: str
    dtype: str
    threads: int | None
    context: int
    slots: int
    extra: tuple[str, ...]
    prompts: int
    prompt_tokens: float
    """Mean."""
    source: str
    """Of the prompts."""
    output_tokens: int
    rounds: int
    together: bool
    """Whether servers of all draft lengths stayed loaded."""


class Throughput(Record):
    setup: Setup
    cells: list[CellResult]
    acceptance: dict[int, list[float]]
    """By concurrency, how often the first n drafted tokens are all accepted: the engine's count."""
    model: Model
    choices: list[ChoiceResult]
    ranges: list[tuple[int, int, int]]
    """First and last number of sequences, and the draft length to serve them with."""
    switch_off: int | None
    """From so many sequences on the target alone is faster; None where a draft always pays."""
    break_even: dict[int, float | None]
    """By draft length, the concurrency at which it stops paying; None where it never starts or
    never stops."""
    samples: list[Sample]
    """Every run, none left out."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    commit: str | None = Field(description="of the code; ends in + where files were changed")


def cells(lab: Lab, found: Study) -> list[CellResult]:
    samples = lab.samples
    return [
        CellResult(
            drafted=cell.drafted,
            concurrency=cell.concurrency,
            rate=cell.rate,
            runs=len(samples.of(cell)),
            tokens_per_s=samples.tokens_per_s(cell),
            relative=ratio(samples.relative(cell)),
            predicted=found.predicted.get(cell),
            seen=cell in found.fitted,
            tau=samples.tau(cell),
            **{name: samples.latencies(cell, name) for name in LATENCIES},
        )
        for cell in samples.cells()
    ]


def ratio(found: tuple[float, float, float]) -> Ratio:
    value, low, high = found
    return Ratio(value=value, low=low, high=high)


def model(found: Study, measured: Sequence[CellResult], few: Sequence[Cell]) -> Model:
    """Errors are those of predictions: of cells that were measured after they were predicted."""
    errors = sorted(
        abs(cell.predicted / cell.relative.value - 1)
        for cell in measured
        if cell.predicted is not None
        and cell.drafted
        and Cell(cell.drafted, cell.concurrency) not in few
    )
    return Model(
        parts_s=dict(zip(PARTS, found.model.parts, strict=True)),
        knee_rows=found.model.knee,
        first_parts_s=found.model.first_parts,
        error=errors[len(errors) // 2] if errors else None,
        worst=errors[-1] if errors else None,
    )


def choices(found: Study) -> list[ChoiceResult]:
    best = {b.concurrency: b for b in found.best}
    return [_choice(choice, best.get(choice.concurrency)) for choice in found.choices]


def _choice(choice: Choice, best: Any) -> ChoiceResult:
    return ChoiceResult(
        concurrency=choice.concurrency,
        drafted=choice.drafted,
        predicted=choice.predicted,
        measured=ratio(choice.measured),
        as_predicted=choice.as_predicted,
        best_drafted=best and best.drafted,
        best=best and ratio(best.measured),
        tolerance=best and best.tolerance,
        reached=best and best.reached,
    )


def stops_paying(measured: Sequence[CellResult], grid: Grid) -> dict[int, float | None]:
    """Of each draft length, where its measured throughput falls through plain decoding's."""
    return {
        k: break_even(
            {
                cell.concurrency: cell.relative.value
                for cell in measured
                if cell.drafted == k and cell.concurrency is not None
            }
        )
        for k in grid.drafted
        if k
    }
