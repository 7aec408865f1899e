"""Whether a served draft accepts less than it was registered with, from what engines count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod, sqrt
from statistics import NormalDist
from typing import Any

from jobs.attach_policy import DriftPolicy


@dataclass(frozen=True)
class Counted:
    """Rounds of speculation and the drafted tokens that they accepted."""

    rounds: int
    accepted: int
    accepted_at: tuple[int, ...] = ()
    """Rounds in which the first 1, 2, … tokens were accepted; empty where that was not counted."""

    @property
    def mean(self) -> float:
        """Tokens accepted a round: the acceptance length is one more."""
        return self.accepted / self.rounds if self.rounds else 0.0


@dataclass(frozen=True)
class Verdict:
    """A draft's acceptance length as served, against what it is registered with."""

    drifted: bool
    rounds: int
    tau: float
    tau_high: float
    """One-sided upper bound, at the policy's confidence."""
    registered_tau: float
    floor: float
    """What the policy still puts up with."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def judge(counted: Counted, metrics: dict[str, Any], policy: DriftPolicy) -> Verdict | None:
    """Hold what was counted against what is registered: None where nothing can be said yet.

    It has drifted where even the upper bound lies below the floor. The bound is normal, over
    rounds; where positions are counted their spread is known, and otherwise the widest that the
    mean allows is taken.

    Args:
        metrics: of the draft: `tau`, and `acceptance_by_position` and `top_k` where known.
    """
    expected = _expected(metrics, len(counted.accepted_at))
    if expected is None or counted.rounds < policy.min_rounds:
        return None
    z = NormalDist().inv_cdf(policy.confidence)
    deepest = int(metrics.get("depth") or len(metrics.get("acceptance_by_position") or ()) or 1)
    high = counted.mean + z * sqrt(_variance(counted, deepest) / counted.rounds)
    floor = expected * (1 - policy.drop)
    return Verdict(
        drifted=high < floor,
        rounds=counted.rounds,
        tau=1 + counted.mean,
        tau_high=1 + high,
        registered_tau=1 + expected,
        floor=1 + floor,
    )


def total(parts: Sequence[Counted]) -> Counted:
    """Several counts together; positions only where all of them have the same ones."""
    depths = {len(part.accepted_at) for part in parts}
    at: tuple[int, ...] = ()
    if len(depths) == 1:
        at = tuple(sum(column) for column in zip(*(p.accepted_at for p in parts), strict=True))
    return Counted(sum(p.rounds for p in parts), sum(p.accepted for p in parts), at)


def _expected(metrics: dict[str, Any], positions: int) -> float | None:
    """Tokens accepted a round by what is registered, as deep as the engine drafts: a shallower
    chain accepts fewer."""
    rates = metrics.get("acceptance_by_position") or []
    chain = (metrics.get("top_k") or 1) == 1
    if chain and 0 < positions <= len(rates):
        return float(sum(prod(rates[: n + 1]) for n in range(positions)))
    tau = metrics.get("tau")
    return None if tau is None or tau <= 1 else float(tau) - 1


def _variance(counted: Counted, deepest: int) -> float:
    """Of the tokens accepted in a round."""
    mean = counted.mean
    if not counted.accepted_at:
        return max(0.0, mean * (deepest - mean))
    square = sum((2 * n + 1) * at for n, at in enumerate(counted.accepted_at)) / counted.rounds
    return max(0.0, square - mean * mean)
