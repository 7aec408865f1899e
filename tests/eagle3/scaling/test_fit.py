"""The curve on points whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3.scaling.fit import Floats, fit

TOKENS = [1000, 2000, 4000, 8000]


def answers(taus: list[float], count: int = 40, rounds: int = 20) -> tuple[Floats, Floats]:
    """Answers that are all alike: only the trainings differ."""
    rounds_NA = np.full((len(taus), count), float(rounds))
    return rounds_NA * np.array(taus)[:, None], rounds_NA


def drawn(taus: list[float], source: np.random.Generator) -> tuple[Floats, Floats]:
    """Answers of which some are easy for every training and some are hard."""
    rounds_NA = source.integers(10, 40, 30) * np.ones((len(taus), 1))
    ease_A = source.normal(1, 0.1, 30)
    return rounds_NA * ease_A * np.array(taus)[:, None], rounds_NA


def test_points_on_a_line_give_the_line_and_no_doubt() -> None:
    curve = fit(TOKENS, *answers([1.5, 1.6, 1.7, 1.8]), most=4)
    assert curve.slope == pytest.approx(0.1)
    assert curve.at(16_000) == pytest.approx(1.9)
    assert (curve.twice.at, curve.twice.low, curve.twice.high) == pytest.approx((1.9, 1.9, 1.9))
    assert curve.residual == pytest.approx(0, abs=1e-12)


def test_trainings_that_stray_widen_the_interval() -> None:
    """By hand: residuals ±0.03, s = 0.0424 (n - 2 = 2); for a new training at the next doubling
    4.303 s sqrt(1 + 1/4 + 2.5² / 5) = 0.2886."""
    curve = fit(TOKENS, *answers([1.53, 1.57, 1.67, 1.83]), most=4)
    assert curve.residual == pytest.approx(0.03 * np.sqrt(2))
    assert curve.twice.at == pytest.approx(1.9)
    assert curve.twice.high - curve.twice.at == pytest.approx(0.2886, rel=0.1)
    assert curve.twice.at - curve.twice.low == pytest.approx(0.2886, rel=0.1)


def test_two_trainings_have_the_doubt_of_the_answers_alone() -> None:
    curve = fit([1000, 4000], *drawn([1.5, 1.7], np.random.default_rng(0)), most=4)
    assert curve.residual is None
    assert curve.record()["interval_of"] == ["answers"]
    assert curve.twice.low < curve.twice.at < curve.twice.high


def test_the_interval_holds_what_comes_of_twice_the_data() -> None:
    """60 experiments: the truth strays by training and by answer; of 95% intervals made of two
    doubts that are added, at least nine in ten must hold the new training."""
    source = np.random.default_rng(1)
    held = 0
    for seed in range(60):
        *taus, new = (np.array([1.5, 1.6, 1.7, 1.8, 1.9]) + source.normal(0, 0.02, 5)).tolist()
        curve = fit(TOKENS, *drawn(taus, source), 4, seed)
        held += curve.twice.low <= new <= curve.twice.high
    assert held >= 54


def test_a_round_emits_no_more_than_it_can() -> None:
    curve = fit(TOKENS, *answers([1.5, 2.1, 3.1, 3.6]), most=4)
    assert curve.at(16_000) > 4
    assert (curve.twice.at, curve.twice.high) == (4, 4)
    assert curve.twice.low >= 1


def test_sizes_must_differ() -> None:
    with pytest.raises(ValueError, match="different sizes"):
        fit([1000, 1000], *answers([1.5, 1.6]), most=4)
    with pytest.raises(ValueError, match="different sizes"):
        fit([1000], *answers([1.5]), most=4)
