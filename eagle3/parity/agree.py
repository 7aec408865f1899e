"""Whether two counts of accepted tokens are of one and the same draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.bench.metrics import acceptance_rates

POINTS = 0.03
"""Rates that lie so near agree, however many rounds they were counted in."""
Z95 = 1.96


@dataclass(frozen=True)
class Rounds:
    """Rounds of speculation, and in how many the first 1, 2, … drafted tokens were accepted."""

    rounds: int = 0
    accepted_at: tuple[int, ...] = ()

    @property
    def reached(self) -> tuple[int, ...]:
        """Rounds in which all tokens before this one were accepted."""
        return (self.rounds, *self.accepted_at[:-1]) if self.accepted_at else ()

    @property
    def by_position(self) -> list[float]:
        """Acceptance of each token, given all before it were (docs/metrics.md: n-alpha)."""
        return acceptance_rates(self.accepted_at, self.reached)

    @property
    def tau(self) -> float:
        """1 + accepted / rounds, as every engine counts it."""
        return 1 + sum(self.accepted_at) / self.rounds if self.rounds else 1.0


@dataclass(frozen=True)
class Position:
    """The acceptance of the n-th drafted token, by the trainer and by an engine."""

    expected: float
    found: float
    interval: tuple[float, float]
    """95% interval of the difference, found less expected."""

    @property
    def agrees(self) -> bool:
        low, high = self.interval
        return abs(self.found - self.expected) <= POINTS or low <= 0 <= high


def positions(expected: Rounds, found: Rounds) -> list[Position]:
    """The comparison, as far as the shorter chain goes.

    The interval is that of Agresti and Caffo (2000) for a difference of two proportions.
    """
    return [
        _position(*place)
        for place in zip(
            expected.accepted_at, expected.reached, found.accepted_at, found.reached, strict=False
        )
    ]


def first_apart(found: Sequence[Position]) -> int | None:
    """The first position that does not agree."""
    return next((n for n, position in enumerate(found) if not position.agrees), None)


def _position(accepted: int, reached: int, their_accepted: int, their_reached: int) -> Position:
    ours, theirs = (accepted + 1) / (reached + 2), (their_accepted + 1) / (their_reached + 2)
    spread = Z95 * math.sqrt(
        ours * (1 - ours) / (reached + 2) + theirs * (1 - theirs) / (their_reached + 2)
    )
    [expected], [found] = (
        acceptance_rates([a], [r])
        for a, r in ((accepted, reached), (their_accepted, their_reached))
    )
    return Position(expected, found, (theirs - ours - spread, theirs - ours + spread))
