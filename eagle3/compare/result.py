"""What a comparison found: `compare.json`, whose schema is that of `Comparison`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from eagle3.bench import metrics
from eagle3.bench.metrics import Counts, Pair, Statistic
from eagle3.compare.ask import PLAIN, Asked, Row
from eagle3.data.records import Record

Interval = tuple[float, float]


class Estimate(Record):
    """A figure with its 95% interval over prompts."""

    value: float
    ci: Interval


class Latencies(Record):
    """In seconds; `docs/metrics.md` says of what."""

    first_s: float
    token_s: float
    wait_p50_s: float
    wait_p95_s: float


class Cell(Record):
    """A method on a task."""

    task: str
    prompts: int
    """Questions with a row; those without are in `TaskInfo.left_out`."""
    speedup: Estimate
    tau: Estimate
    tokens_per_s: float
    tokens: int
    rounds: int
    seconds: float
    acceptance_by_position: list[float]
    latency: Latencies | None
    """None where there is no row."""
    verdict: str
    why: str
    equal: int
    """Answers with the very tokens of plain decoding."""
    answers: int


class Training(Record):
    """What a method's training cost."""

    parameters: int
    """Trained ones."""
    seconds: float
    """Of training steps alone; evaluations do not count."""
    tokens: int
    """Prompt and answer tokens, each time they were seen."""
    steps: int
    tau: float
    """Of greedy chains along held-out answers, at the best evaluation."""
    precision: str
    sha256: str
    """Of the weights."""
    cached: bool
    """Trained by an earlier run of this command."""


class BudgetSaid(Record):
    """Whichever is spent first ends a training."""

    seconds: float | None
    tokens: int | None


class MethodResult(Record):
    name: str
    settings: dict[str, Any]
    """Of its drafts, as decoded."""
    training: Training | None = None
    """None for a method without parameters."""
    cells: list[Cell]
    speedup: Estimate
    """Mean over tasks, each weighing the same."""
    tau: Estimate


class TaskInfo(Record):
    name: str
    source: str
    questions: int
    asked: int
    left_out: dict[str, str]
    """By question, why a turn of it was not asked."""


class PlainLoop(Record):
    """Plain decoding: the fastest loop here."""

    loop: str
    tokens_per_s: dict[str, float]
    """Of every loop, on the prompts that chose."""


class Comparison(Record):
    """Methods, in the order they were named, beside plain decoding."""

    target: str
    weights_sha256: str
    temperature: float
    max_new_tokens: int
    budget: BudgetSaid
    """What each training may cost."""
    seed: int
    tasks: list[TaskInfo]
    baseline: PlainLoop
    plain: dict[str, float]
    """Plain decoding's tokens/s by task."""
    methods: list[MethodResult]
    asked: list[Asked]
    """Every row, none left out."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    commit: str | None = Field(description="of the code; ends in + where files were changed")
    threads: int
    device: str
    dtype: str


def method_result(
    name: str,
    settings: Mapping[str, Any],
    training: Training | None,
    asked: Sequence[Asked],
    tasks: Sequence[str],
    seed: int,
) -> MethodResult:
    """A method's figures on every task, and their means."""
    by_task = {task: [a for a in asked if a.task == task and a.rows] for task in tasks}
    pairs = {task: [_pair(a, name) for a in found] for task, found in by_task.items()}
    some = [found for found in pairs.values() if found]

    def estimate(statistic: Statistic, groups: Sequence[Sequence[Pair]]) -> Estimate:
        if not groups:
            return Estimate(value=0.0, ci=(0.0, 0.0))
        ci = metrics.mean_interval(groups, statistic, seed)
        return Estimate(value=metrics.mean(groups, statistic), ci=ci)

    cells = []
    for task in tasks:
        groups = [pairs[task]] if pairs[task] else []
        speedup, tau = estimate(metrics.speedup, groups), estimate(metrics.tau, groups)
        verdict, why = metrics.verdict(speedup.ci, tau.value)
        total = metrics.total(pairs[task]).draft
        rows = [row for a in by_task[task] for row in a.rows if row.method == name]
        cells.append(
            Cell(
                task=task,
                prompts=len(pairs[task]),
                speedup=speedup,
                tau=tau,
                tokens_per_s=total.tokens_per_s,
                tokens=total.tokens,
                rounds=total.rounds,
                seconds=total.seconds,
                acceptance_by_position=total.acceptance_by_position,
                latency=_latency(rows),
                verdict=verdict,
                why=why,
                equal=sum(row.equal for row in rows),
                answers=len(rows),
            )
        )
    return MethodResult(
        name=name,
        settings=dict(settings),
        training=training,
        cells=cells,
        speedup=estimate(metrics.speedup, some),
        tau=estimate(metrics.tau, some),
    )


def plain_speeds(asked: Sequence[Asked], tasks: Sequence[str]) -> dict[str, float]:
    """Plain decoding's tokens/s by task."""
    speeds = {}
    for task in tasks:
        counts = [_counts(a, PLAIN) for a in asked if a.task == task]
        speeds[task] = sum(counts, Counts()).tokens_per_s
    return speeds


def _pair(asked: Asked, name: str) -> Pair:
    return Pair(_counts(asked, PLAIN), _counts(asked, name))


def _counts(asked: Asked, name: str) -> Counts:
    return sum((row.counts for row in asked.rows if row.method == name), Counts())


def _latency(rows: Sequence[Row]) -> Latencies | None:
    if not rows:
        return None
    found = metrics.latency([row.stamps for row in rows])
    return Latencies(**vars(found))
