"""A comparison for people: `compare.md`, its picture, and the JSON with its schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle3.compare.result import BudgetSaid, Cell, Comparison, Estimate, MethodResult
from eagle3.report.markdown import table
from eagle3.report.plots import GREY, plain, save
from eagle3.run import write_json

NAME = "compare"
COLOURS = ("#2563eb", "#ea580c", "#0d9488", "#9333ea", "#ca8a04", "#dc2626", "#4d7c0f", "#0369a1",
           "#be185d", "#57534e")  # fmt: skip
REFUSED = "measurement_error"


def write(found: Comparison, folder: Path) -> str:
    """Write the files; returns the text of `compare.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{NAME}.json", json.loads(found.model_dump_json()))
    write_json(folder / f"{NAME}.schema.json", Comparison.model_json_schema())
    save(_picture(found), folder, NAME)
    text = markdown(found)
    (folder / f"{NAME}.md").write_text(text)
    return text


def markdown(found: Comparison) -> str:
    names = [task.name for task in found.tasks]
    lines = [
        f"# Drafting methods on {found.target}",
        "",
        f"Temperature {found.temperature:g}, at most {found.max_new_tokens} new tokens, batch 1. "
        "Each cell: speedup / tau (tokens a target forward).",
        "",
        *table(
            ["method", *names, "mean"],
            [
                [
                    _label(method),
                    *(_point(cell) for cell in method.cells),
                    f"{_speed(_speedups(method)[-1])} / {method.tau.value:.2f}",
                ]
                for method in found.methods
            ],
        ),
        "",
        "## Intervals (95%, over prompts, paired)",
        "",
        *table(
            ["method", "", *names, "mean"],
            [
                row
                for method in found.methods
                for row in (
                    [method.name, "speedup", *map(_speed_range, _speedups(method))],
                    ["", "tau", *(_range(cell.tau) for cell in method.cells), _range(method.tau)],
                )
            ],
        ),
        "",
        *_trainings(found.methods),
        f"![speedup and tau by task]({NAME}.png)",
        "",
        *(f"- {note}" for note in _notes(found)),
    ]
    return "\n".join(lines) + "\n"


def _label(method: MethodResult) -> str:
    return method.name if method.settings.get("lossless", True) else f"{method.name} (lossy)"


def _speedups(method: MethodResult) -> list[Estimate | None]:
    """By task, and of the mean, which is no better than its parts; None where it is refused."""
    cells = [None if cell.verdict == REFUSED else cell.speedup for cell in method.cells]
    return [*cells, None if None in cells else method.speedup]


def _point(cell: Cell) -> str:
    speed = _speed(None if cell.verdict == REFUSED else cell.speedup)
    return "–" if cell.verdict == "no_tokens" else f"{speed} / {cell.tau.value:.2f}"


def _speed(estimate: Estimate | None) -> str:
    return "refused" if estimate is None else f"{estimate.value:.2f}x"


def _speed_range(estimate: Estimate | None) -> str:
    return "refused" if estimate is None else _range(estimate)


def _range(estimate: Estimate) -> str:
    return f"{estimate.ci[0]:.2f} to {estimate.ci[1]:.2f}"


def _trainings(methods: Sequence[MethodResult]) -> list[str]:
    trained = [(m.name, m.training) for m in methods if m.training is not None]
    if not trained:
        return []
    rows = [
        [
            name,
            f"{t.parameters:,}",
            f"{t.seconds:.0f} s",
            f"{t.tokens:,}",
            f"{t.steps:,}",
            f"{t.tau:.2f}",
            "before" if t.cached else "now",
        ]
        for name, t in trained
    ]
    head = ["method", "trained parameters", "time", "tokens seen", "steps", "held-out tau", "when"]
    return ["## Trainings", "", *table(head, rows), ""]


def _notes(found: Comparison) -> list[str]:
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in found.baseline.tokens_per_s.items())
    cells = [(m.name, cell) for m in found.methods for cell in m.cells]
    notes = [
        f"Speedups are over plain decoding by the fastest loop here, {found.baseline.loop} "
        f"(tokens/s: {speeds}).",
        "All methods answered the same prompts with the same caps and stops, in an order drawn "
        "for each turn; docs/metrics.md defines every figure.",
    ]
    trained = [m.name for m in found.methods if m.training is not None]
    if trained:
        notes.append(
            f"{', '.join(trained)}: trained on the same features, {_budget(found.budget)} each. "
            "Held-out tau is that of greedy chains."
        )
    notes += [
        f"{name} on {cell.task} is refused: {cell.why}."
        for name, cell in cells
        if cell.verdict == REFUSED
    ]
    notes += [
        f"{method.name} is lossy: its guesses are not verified exactly, and what it samples is not "
        "the target's own text. At temperature 0 it is exact."
        for method in found.methods
        if _label(method) != method.name
    ]
    if found.temperature == 0:
        notes += [
            f"{name} on {cell.task}: {cell.answers - cell.equal} of {cell.answers} answers differ "
            "from plain decoding's; eagle3 prove tells a tie in rounding from a fault."
            for name, cell in cells
            if cell.equal < cell.answers
        ]
    notes += [
        f"{task.name}, question {question}: {why}."
        for task in found.tasks
        for question, why in task.left_out.items()
    ]
    machine = ", ".join(found.hardware.get("gpus", [])) or found.hardware["cpu"]
    prompts = ", ".join(f"{task.name} {task.asked} of {task.questions}" for task in found.tasks)
    notes.append(f"Questions: {prompts}. Seed {found.seed}.")
    versions = ", ".join(f"{name} {found.versions[name]}" for name in ("torch", "transformers"))
    notes.append(
        f"{machine}, {found.device}, {found.dtype}, {found.threads} thread(s); {versions}; code "
        f"{found.commit or found.versions.get('updraft', 'unknown')}."
    )
    return notes


def _budget(budget: BudgetSaid) -> str:
    seconds = [] if budget.seconds is None else [f"{budget.seconds:g} s"]
    tokens = [] if budget.tokens is None else [f"{budget.tokens:,} tokens"]
    return " or ".join([*seconds, *tokens])


def _picture(found: Comparison) -> Figure:
    names = [*(task.name for task in found.tasks), "mean"]
    figure = Figure(figsize=(max(6.4, 1.5 * len(names)), 6.0), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    _bars(top, found.methods, [_speedups(m) for m in found.methods])
    _bars(bottom, found.methods, [[c.tau for c in m.cells] + [m.tau] for m in found.methods])
    top.set(title=f"Drafting methods on {found.target}", ylabel="speedup over plain decoding")
    bottom.set(ylabel="tau, tokens a target forward")
    bottom.set_xticks(range(len(names)), names)
    handles, labels = bottom.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=5, loc="outside lower center")
    return figure


def _bars(
    axes: Axes, methods: Sequence[MethodResult], estimates: Sequence[Sequence[Estimate | None]]
) -> None:
    """Bars by task; none where a figure is refused."""
    width = 0.8 / max(1, len(methods))
    for n, (method, row) in enumerate(zip(methods, estimates, strict=True)):
        there = [(place, value) for place, value in enumerate(row) if value is not None]
        values = [value for _, value in there]
        at = np.array([place for place, _ in there]) + (n - (len(methods) - 1) / 2) * width
        bars = [
            [max(0.0, v.value - v.ci[0]) for v in values],
            [max(0.0, v.ci[1] - v.value) for v in values],
        ]
        axes.bar(
            at, [v.value for v in values], width, yerr=bars, label=method.name,
            color=COLOURS[n % len(COLOURS)], error_kw={"linewidth": 0.8},
        )  # fmt: skip
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    axes.margins(y=0.15)
    plain(axes)
