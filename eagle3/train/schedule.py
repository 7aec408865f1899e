"""The learning rate of each optimiser step."""

from __future__ import annotations

import math

from eagle3.config import TrainConfig

FLOOR = 0.05
"""Share of the peak that a falling schedule ends at."""


def learning_rate(config: TrainConfig, index: int, total: int) -> float:
    """The rate of step `index` (from 0) of `total`: a linear rise, then the schedule's shape.

    A warm-up longer than the training never reaches the peak.
    """
    warm = config.warmup_steps
    if warm is None:
        warm = max(1, round(config.warmup_fraction * total))
    if index < warm:
        return config.learning_rate * (index + 1) / warm
    done = (index - warm) / max(1, total - warm)
    match config.schedule:
        case "cosine":
            share = 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            share = 1 - done
        case "constant":
            return config.learning_rate
    return config.learning_rate * (FLOOR + (1 - FLOOR) * share)
