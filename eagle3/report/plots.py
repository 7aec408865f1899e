"""The two pictures: how training went, and how fast decoding became."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle3.report.facts import Facts

INK, BLUE, ORANGE, GREY = "#1f2933", "#2563eb", "#ea580c", "#9aa5b1"


def write_plots(facts: Facts, folder: Path) -> list[str]:
    """Write `loss` and `speedup` as SVG and PNG where there is data; returns the names written."""
    written = []
    if facts.history:
        written += save(_loss(facts.history), folder, "loss")
    if facts.benchmark:
        written += save(_speedup(facts.summary("benchmark")), folder, "speedup")
    return written


def _loss(history: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    trained = [row for row in history if "train/loss" in row]  # not where a batch was left out
    losses = [row["train/loss"] for row in trained]
    left.plot([row["step"] for row in trained], losses, color=BLUE, linewidth=1.2)
    left.set(title="Training loss", xlabel="optimiser step", ylabel="loss over all draft steps")
    evaluated = [row for row in history if "eval/acceptance_length" in row]
    right.plot(
        [row["step"] for row in evaluated],
        [row["eval/acceptance_length"] for row in evaluated],
        color=ORANGE,
        marker="o",
        markersize=3.5,
    )
    right.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    right.set(title="Held-out acceptance length", xlabel="optimiser step", ylabel="tokens a round")
    for axes in (left, right):
        plain(axes)
    return figure


def _speedup(bench: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rates = [bench["plain_tokens_per_s"], bench["draft_tokens_per_s"]]
    bars = left.bar(["plain", "with draft"], rates, color=[GREY, BLUE], width=0.55)
    left.bar_label(bars, fmt="%.1f")
    left.margins(y=0.12)
    low, high = bench["speedup_ci"]
    left.set(
        title=f"Decoding: {bench['speedup']:.2f}x (95% {low:.2f} to {high:.2f})",
        ylabel="tokens per second",
    )
    rates = bench["acceptance_by_position"]
    bars = right.bar([str(n + 1) for n in range(len(rates))], rates, color=ORANGE, width=0.55)
    right.bar_label(bars, fmt="%.2f")
    right.set(
        title=f"Acceptance by draft position (tau {bench['tau']:.2f})",
        xlabel="position in the draft",
        ylabel="accepted, given the earlier ones",
        ylim=(0, 1.05),
    )
    for axes in (left, right):
        plain(axes)
    return figure


def plain(axes: Axes) -> None:
    """The look that all our pictures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.title.set_fontsize(10.5)


def save(figure: Figure, folder: Path, name: str) -> list[str]:
    """Write a picture as SVG and PNG; returns the names."""
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"{name}.{suffix}", dpi=130)
    return [f"{name}.svg", f"{name}.png"]
