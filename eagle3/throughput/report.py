"""A throughput study for people: `throughput.md` and its chart; the JSON with its schema; the ready
settings of each engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle3.compare.report import COLOURS
from eagle3.engines import serving_settings
from eagle3.report.markdown import table
from eagle3.report.plots import GREY, plain, save
from eagle3.run import write_json
from eagle3.throughput.result import CellResult, ChoiceResult, Ratio, Throughput
from eagle3.throughput.samples import Latencies

NAME = "throughput"
SETTINGS = "settings"
FALLEN = 0.9
"""Of tau at the lowest load; less at the highest is told."""


def write(found: Throughput, folder: Path) -> str:
    """Write the files; returns the text of `throughput.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{NAME}.json", json.loads(found.model_dump_json()))
    write_json(folder / f"{NAME}.schema.json", Throughput.model_json_schema())
    save(_chart(found), folder, NAME)
    serving_settings.write(found.ranges, folder / SETTINGS)
    text = markdown(found)
    (folder / f"{NAME}.md").write_text(text)
    return text


def markdown(found: Throughput) -> str:
    setup = found.setup
    lines = [
        f"# {setup.draft} under load in {setup.engine} {setup.engine_version}",
        "",
        *_recommended(found),
        "",
        "## Throughput over that of the target alone",
        "",
        f"Output tokens/s of the target alone, and what a draft of 1, 2, … tokens makes of it: the "
        f"median of {setup.rounds} turns (and the runs' interval).",
        "",
        *_grid(found),
        "",
        f"![throughput by concurrency]({NAME}.png)",
        "",
        *_latencies(found),
        *_acceptance(found),
        "## Notes",
        "",
        *(f"- {note}" for note in _notes(found)),
    ]
    return "\n".join(lines) + "\n"


def _recommended(found: Throughput) -> list[str]:
    judged = any(choice.best for choice in found.choices)
    head = ["answers in progress", "draft tokens", "predicted", "measured"]
    rows = [
        [str(c.concurrency), _length(c.drafted), _times(c.predicted), _range(c.measured)]
        for c in found.choices
    ]
    if judged:
        head += ["best of the grid", "as good"]
        rows = [row + _judged(c) for row, c in zip(rows, found.choices, strict=True)]
    return [_verdict(found), "", *table(head, rows)]


def _judged(choice: ChoiceResult) -> list[str]:
    assert choice.best is not None
    assert choice.best_drafted is not None
    best = f"{_length(choice.best_drafted)}: {_range(choice.best)}"
    return [best, f"{'yes' if choice.reached else 'no'} (± {choice.tolerance:.2f})"]


def _verdict(found: Throughput) -> str:
    if not any(drafted for *_, drafted in found.ranges):
        return "The target alone is fastest under every load measured: serve it without the draft."
    said = ", ".join(
        f"{_length(drafted)} {'at' if first == last else 'from'} {first}"
        + ("" if first == last else f" to {last}")
        for first, last, drafted in found.ranges
    )
    off = (
        f"From {found.switch_off} answers in progress on, the target alone is faster."
        if found.switch_off
        else "A draft pays under every load measured."
    )
    return f"Draft tokens by answers in progress: {said}. {off}"


def _grid(found: Throughput) -> list[str]:
    lengths = sorted({cell.drafted for cell in found.cells if cell.drafted})
    loads = sorted({(cell.rate or 0.0, cell.concurrency or 0) for cell in found.cells})
    rows = []
    for rate, concurrency in loads:
        alike = {c.drafted: c for c in found.cells if _load(c) == (rate, concurrency)}
        cells = [_cell(alike.get(k)) for k in lengths]
        load = f"{rate:g} a second" if rate else str(concurrency)
        rows.append([load, f"{alike[0].tokens_per_s:.1f}", *cells])
    return table(["load", "target alone, tokens/s", *(f"{k} drafted" for k in lengths)], rows)


def _load(cell: CellResult) -> tuple[float, int]:
    return (cell.rate or 0.0, cell.concurrency or 0)


def _cell(cell: CellResult | None) -> str:
    return "–" if cell is None else _range(cell.relative)


def _latencies(found: Throughput) -> list[str]:
    """Of the target alone and of each choice."""
    chosen = {(0.0, c.concurrency): c.drafted for c in found.choices}
    rows = [
        [
            f"{cell.rate:g} a second" if cell.rate else str(cell.concurrency),
            _length(cell.drafted),
            *(_percentiles(value) for value in (cell.first_s, cell.token_s, cell.wait_s)),
        ]
        for cell in found.cells
        if cell.first_s and (cell.rate or cell.drafted in (0, chosen.get(_load(cell))))
    ]
    if not rows:
        return []
    head = ["load", "draft tokens", "time to first token", "time per output token", "inter-token"]
    said = "Milliseconds: median / 95th / 99th percentile; each is the median of the turns."
    return ["## Latencies", "", said, "", *table(head, rows), ""]


def _percentiles(found: Latencies | None) -> str:
    if found is None:
        return "–"
    return " / ".join(f"{1e3 * value:.1f}" for value in (found.p50, found.p95, found.p99))


def _acceptance(found: Throughput) -> list[str]:
    deepest = max(map(len, found.acceptance.values()))
    head = ["answers in progress", *(f"first {n + 1}" for n in range(deepest)), "tau"]
    rows = [
        [str(n), *(f"{a:.3f}" for a in at), f"{1 + sum(at):.2f}"]
        for n, at in found.acceptance.items()
    ]
    said = "How often the first n drafted tokens are all accepted, as the engine counts."
    return ["## Acceptance by position", "", said, "", *table(head, rows), ""]


def _notes(found: Throughput) -> list[str]:
    setup, model = found.setup, found.model
    parts = ", ".join(f"{name} {1e3 * s:.3g}" for name, s in model.parts_s.items() if s)
    notes = [
        f"{setup.prompts} prompts ({setup.source}, {setup.prompt_tokens:.0f} tokens on average), "
        f"{setup.output_tokens} tokens an answer whatever ends it, greedy, {setup.dtype}; load by "
        f"{setup.generator}. Every turn measures every draft length, the target alone among them, "
        f"{'on servers that stay up' if setup.together else 'each on a server started for it'}; "
        "docs/metrics.md defines every figure.",
        f"Cost of a round, in ms: {parts} (rows beyond {model.knee_rows}); docs/throughput.md says "
        "what the parts are.",
    ]
    if model.error is not None and model.worst is not None:
        notes.append(
            f"Predictions of cells that had not been seen were off by {model.error:.1%} (median), "
            f"at most {model.worst:.1%}."
        )
    notes += [
        f"{choice.concurrency} in progress: predicted {_times(choice.predicted)}, measured "
        f"{_range(choice.measured)}."
        for choice in found.choices
        if not choice.as_predicted
    ]
    if (fallen := _fallen(found)) is not None:
        notes.append(fallen)
    notes += [
        f"{_length(k)}: stops paying at {at:.0f} answers in progress."
        for k, at in found.break_even.items()
        if at is not None
    ]
    machine = ", ".join(found.hardware.get("gpus", [])) or found.hardware["cpu"]
    threads = f"{setup.threads} thread(s), " if setup.threads else ""
    code = found.commit or found.versions.get("updraft", "unknown")
    notes.append(f"{machine}, {threads}{setup.slots} slots; code {code}.")
    notes.append(f"Serve it: {serving_settings.command(found.ranges, setup.target)}")
    return notes


def _fallen(found: Throughput) -> str | None:
    """The warning that a draft is worth less under load, which greedy decoding does not explain."""
    loads = sorted(found.acceptance)
    low, high = (1 + sum(found.acceptance[n]) for n in (loads[0], loads[-1]))
    if high >= FALLEN * low:
        return None
    return (
        f"Tau falls from {low:.2f} at {loads[0]} to {high:.2f} at {loads[-1]} answers in progress. "
        "Other prompts explain little of it: the engine mixes up what its sequences feed the draft."
    )


def _length(drafted: int) -> str:
    return str(drafted) if drafted else "none"


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _range(found: Ratio) -> str:
    return f"{_times(found.value)} ({found.low:.2f} to {found.high:.2f})"


def _chart(found: Throughput) -> Figure:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    lengths = sorted({cell.drafted for cell in found.cells if cell.drafted})
    for n, drafted in enumerate(lengths):
        alike = [c for c in found.cells if c.drafted == drafted and c.concurrency is not None]
        _line(axes, alike, COLOURS[n % len(COLOURS)], f"{drafted} drafted")
        at = found.break_even.get(drafted)
        if at is not None:
            axes.axvline(at, color=COLOURS[n % len(COLOURS)], linewidth=0.8, linestyle=":")
            axes.annotate(
                f"{at:.0f}", (at, 1.0), xytext=(2, 4), textcoords="offset points", fontsize=8
            )
    chosen = [(c.concurrency, c.measured.value) for c in found.choices]
    axes.plot(*zip(*chosen, strict=True), "o", markersize=11, markerfacecolor="none",
              markeredgecolor=GREY, label="chosen")  # fmt: skip
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    loads = [c.concurrency for c in found.choices]
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [str(n) for n in loads])
    axes.minorticks_off()
    axes.set(
        title=f"{found.setup.engine}: throughput with the draft, and where it breaks even (dotted)",
        xlabel="answers in progress",
        ylabel="tokens/s over the target alone",
    )
    axes.legend(frameon=False, fontsize=9)
    plain(axes)
    return figure


def _line(axes: Axes, cells: Sequence[CellResult], colour: str, label: str) -> None:
    at = [float(cell.concurrency or 0) for cell in cells]
    values = [cell.relative for cell in cells]
    bars = [[v.value - v.low for v in values], [v.high - v.value for v in values]]
    axes.errorbar(
        at, [v.value for v in values], yerr=bars, color=colour, marker="o", markersize=4,
        linewidth=1.4, elinewidth=0.8, label=label,
    )  # fmt: skip
