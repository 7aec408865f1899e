"""Arithmetic of the load figures: requests that are due at fixed times, percentiles, tables."""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

HEAD = ("", "n", "median ms", "p95", "p99", "max")
"""Of `row`."""


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation between the two values next to it."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def row(name: str, milliseconds: Sequence[float]) -> list[str]:
    """A line of a table: how many, and how long they took."""
    cuts = (*(percentile(milliseconds, p) for p in (50, 95, 99)), max(milliseconds))
    return [name, str(len(milliseconds)), *(f"{value:.1f}" for value in cuts)]


def growth(small: Sequence[float], large: Sequence[float]) -> float:
    """How much slower the 99th percentile became."""
    return percentile(large, 99) / percentile(small, 99)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def say(text: str) -> None:
    """Print at once: a run that is cut off has said what it found until then."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def bounded(name: str, found: float, bound: float, unit: str) -> bool:
    """Print a figure and its bound. Returns whether the bound holds, which NaN never does."""
    held = not math.isnan(found) and found < bound
    say(f"{name}: {found:.3g} {unit}, the bound is {bound:g}: {'held' if held else '**missed**'}")
    return held


async def open_loop(rate: float, count: int, ask: Callable[[int], Awaitable[None]]) -> list[float]:
    """Ask `count` times, `rate` times a second, whether or not the earlier ones were answered.

    Returns:
        Milliseconds until each was answered, from when it was due: a stall counts for all that
        had to wait for it.
    """
    late: list[float] = []
    start = time.perf_counter() + 0.2

    async def one(number: int) -> None:
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await ask(number)
        late.append(1e3 * (time.perf_counter() - due))

    await asyncio.gather(*(one(number) for number in range(count)))
    return late
