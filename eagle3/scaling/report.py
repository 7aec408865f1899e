"""The finding: `scaling.md`, the same as `scaling.json`, and its picture as SVG and PNG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from eagle3.provenance import hardware, versions
from eagle3.report.markdown import table
from eagle3.report.plots import BLUE, GREY, ORANGE, plain, save
from eagle3.run import write_json
from eagle3.scaling.fit import Curve, Value
from eagle3.scaling.measure import Training

NAME = "scaling"


@dataclass(frozen=True)
class Finding:
    """The trainings, smallest first, and the curve through them."""

    target: str
    seed: int
    depth: int
    """Draft tokens of a round."""
    trainings: list[Training]
    curve: Curve
    judges_chose: bool
    """Whether the answers that measure had also chosen the checkpoints."""

    @property
    def tokens(self) -> list[int]:
        return [training.tokens for training in self.trainings]


def write(finding: Finding, folder: Path) -> str:
    """Write the files; returns the text of `scaling.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _markdown(finding)
    (folder / f"{NAME}.md").write_text(text)
    save(_picture(finding), folder, NAME)
    write_json(folder / f"{NAME}.json", _record(finding))
    return text


def _record(finding: Finding) -> dict[str, Any]:
    rows = zip(finding.trainings, finding.curve.taus, strict=True)
    return {
        "target": finding.target,
        "seed": finding.seed,
        "depth": finding.depth,
        "judges_chose": finding.judges_chose,
        "trainings": [
            {**training.record(), "tau": tau.at, "tau_ci": [tau.low, tau.high]}
            for training, tau in rows
        ],
        "curve": finding.curve.record(),
        "versions": versions(),
        "hardware": hardware(),
    }


def _markdown(finding: Finding) -> str:
    curve, whole = finding.curve, finding.tokens[-1]
    lines = [
        f"# How much data is enough: {finding.target}",
        "",
        f"Twice the data ({2 * whole:,} training tokens) would give an acceptance length of "
        f"{_said(curve.twice)}: {curve.doubling.at:+.3f} ({curve.doubling.low:+.3f} to "
        f"{curve.doubling.high:+.3f}) for a doubling. {_advice(curve.doubling)}",
        "",
        *table(
            ["data", "samples", "training tokens", "answer tokens", "steps", "acceptance length"],
            [
                [
                    training.share,
                    f"{training.samples:,}",
                    f"{training.tokens:,}",
                    f"{training.answer_tokens:,}",
                    f"{training.steps:,}",
                    _said(tau),
                ]
                for training, tau in zip(finding.trainings, curve.taus, strict=True)
            ],
        ),
    ]
    lines += ["", "![acceptance length against training tokens](scaling.png)", ""]
    lines += [f"- {note}" for note in _notes(finding)]
    return "\n".join(lines) + "\n"


def _advice(doubling: Value) -> str:
    if doubling.low > 0:
        return "More data still helps."
    if doubling.high < 0:
        return "More data made the draft worse: look at the data, and at the learning rate."
    return "Whether more data helps cannot be told from these trainings."


def _notes(finding: Finding) -> list[str]:
    curve, answers = finding.curve, len(finding.trainings[0].rounds)
    notes = [
        f"Acceptance length: emitted tokens a round of greedy chains of {finding.depth}, along "
        f"{answers} held-out answers; its interval (95%) is that of the answers alone.",
        f"The curve: {curve.intercept:.3f} + {curve.slope:.3f} log2(training tokens), by least "
        "squares. It is read one doubling beyond the data and no further.",
        "Training tokens: prompts and answers of the samples, each counted once; every training "
        "makes as many passes. Smaller parts lie inside larger ones; each draft's vocabulary is "
        "that of its own part.",
    ]
    if curve.residual is None:
        notes.append(
            "Two trainings leave no residuals: the interval for twice the data is that of the "
            "answers alone, and too narrow."
        )
    else:
        notes.append(
            "The interval for twice the data (95%) holds both what other answers would say "
            f"(drawn again) and how trainings stray from the curve (by {curve.residual:.3f}; "
            f"Student's t, degrees of freedom: {len(finding.trainings) - 2}); more --shares "
            "narrow it."
        )
    if finding.judges_chose:
        notes.append(
            "These answers also chose each training's checkpoint, so lengths are a little too "
            "high: hold out more prompts than train.eval_samples."
        )
    if curve.at(2 * finding.tokens[-1]) > finding.depth + 1:
        notes.append(
            f"A round of {finding.depth} draft tokens emits at most {finding.depth + 1}: the curve "
            "has reached where no line can go on."
        )
    return notes


def _picture(finding: Finding) -> Figure:
    curve, tokens = finding.curve, finding.tokens
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    ends = np.array([tokens[0], 2 * tokens[-1]], dtype=np.float64)
    axes.plot(ends, [curve.at(x) for x in ends], color=GREY, linewidth=1.2, linestyle="--")
    _dots(axes, tokens, curve.taus, BLUE, "measured")
    _dots(axes, [2 * tokens[-1]], [curve.twice], ORANGE, "twice the data, from the curve")
    axes.set_xscale("log", base=2)
    ticks = [*tokens, 2 * tokens[-1]]
    axes.set_xticks(ticks, [_short(x) for x in ticks])
    axes.set(
        title=f"Twice the data: {_said(curve.twice)}",
        xlabel="training tokens",
        ylabel="held-out acceptance length",
    )
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    plain(axes)
    return figure


def _dots(axes: Any, x: list[int], values: list[Value], color: str, label: str) -> None:
    at = [value.at for value in values]
    bars = [
        [max(0.0, value.at - value.low) for value in values],
        [max(0.0, value.high - value.at) for value in values],
    ]
    axes.errorbar(
        x, at, yerr=bars, fmt="o", color=color, markersize=5, capsize=3, linewidth=1, label=label
    )


def _short(tokens: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "K")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter}"
    return str(tokens)


def _said(value: Value) -> str:
    return f"{value.at:.2f} (95% {value.low:.2f} to {value.high:.2f})"
