"""When counters of a serving engine say that a draft has fallen behind."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.attach_policy import DriftPolicy
from jobs.drift import Counted, Verdict, judge, total

METRICS = {"tau": 2.4, "depth": 3, "acceptance_by_position": [0.8, 0.5, 0.5]}
"""0.8 + 0.4 + 0.2 = 1.4 tokens accepted a round."""


def verdict(counted: Counted, metrics: dict[str, Any] = METRICS, **policy: Any) -> Verdict:
    found = judge(counted, metrics, DriftPolicy(**policy))
    assert found is not None
    return found


def test_what_it_is_registered_with_is_no_drift() -> None:
    found = verdict(Counted(2000, 2800, (1600, 800, 400)))
    assert not found.drifted
    assert found.tau == pytest.approx(2.4)
    assert found.floor == pytest.approx(1 + 1.4 * 0.8)


def test_a_fall_beyond_doubt() -> None:
    found = verdict(Counted(2000, 1500, (1000, 350, 150)))
    assert found.drifted
    assert found.tau < found.tau_high < found.floor


def test_a_fall_that_may_be_chance_is_not_acted_upon() -> None:
    near = Counted(1000, 1100, (700, 300, 100))  # just below the floor of 1.12 a round
    assert not verdict(near).drifted
    many = Counted(1_000_000, 1_100_000, (700_000, 300_000, 100_000))
    assert verdict(many).drifted


def test_few_rounds_say_nothing() -> None:
    assert judge(Counted(999, 0, (0, 0, 0)), METRICS, DriftPolicy()) is None
    assert judge(Counted(5000, 0), {"tau": None}, DriftPolicy()) is None


def test_a_shallower_chain_is_held_against_as_many_positions() -> None:
    assert not verdict(Counted(5000, 4000, (4000,))).drifted
    assert verdict(Counted(5000, 3000, (3000,))).drifted


def test_without_positions_the_widest_spread_is_taken() -> None:
    with_positions = verdict(Counted(2000, 2200, (1300, 600, 300)))
    without = verdict(Counted(2000, 2200))
    assert without.tau_high > with_positions.tau_high


def test_counts_add_up() -> None:
    parts = [Counted(10, 8, (6, 2)), Counted(5, 3, (2, 1))]
    assert total(parts) == Counted(15, 11, (8, 3))
    assert total([*parts, Counted(1, 1)]) == Counted(16, 12)
    assert total([]) == Counted(0, 0)
