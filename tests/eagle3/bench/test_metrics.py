"""Each figure on counts made by hand."""

from __future__ import annotations

import pytest

from eagle3.bench import metrics
from eagle3.bench.metrics import Counts, Pair


def pair(plain_s: float, draft_s: float, tokens: int = 100, rounds: int = 50) -> Pair:
    return Pair(
        Counts(tokens, tokens, plain_s),
        Counts(tokens, rounds, draft_s, reached=[50, 30], accepted=[30, 20]),
    )


NOTHING = Pair(Counts(), Counts())
"""A prompt whose answers ended with the prefill's own token."""


def test_speedup_is_the_ratio_of_tokens_per_second_over_all_prompts() -> None:
    pairs = [pair(10.0, 5.0), pair(30.0, 20.0, tokens=300, rounds=100)]
    assert metrics.speedup(pairs) == pytest.approx((400 / 25) / (400 / 40))
    assert metrics.tau(pairs) == pytest.approx(400 / 150)
    assert metrics.total(pairs).draft.acceptance_by_position == pytest.approx([0.6, 2 / 3])


def test_the_gain_in_tau_is_that_over_another_draft() -> None:
    pairs = [Pair(Counts(20, 10), Counts(30, 10)), Pair(Counts(40, 10), Counts(40, 20))]
    assert metrics.tau_gain(pairs) == pytest.approx(70 / 30 - 60 / 20)
    assert metrics.interval(pairs[:1], metrics.tau_gain, seed=0) == pytest.approx((1.0, 1.0))


def test_the_interval_is_paired_and_repeats_with_its_seed() -> None:
    alike = [pair(t, t / 2) for t in (1.0, 5.0, 20.0)]
    assert metrics.interval(alike, metrics.speedup, seed=0) == pytest.approx((2.0, 2.0))
    mixed = [pair(10.0, s) for s in (4.0, 5.0, 6.0, 8.0, 9.0, 5.0)]
    low, high = metrics.interval(mixed, metrics.speedup, seed=1)
    assert low < metrics.speedup(mixed) < high
    assert metrics.interval(mixed, metrics.speedup, seed=1) == (low, high)


def test_of_a_mean_every_task_weighs_the_same() -> None:
    tasks = [[pair(10.0, 5.0)] * 3, [pair(1000.0, 250.0, tokens=10_000)]]
    assert metrics.mean(tasks, metrics.speedup) == pytest.approx((2 + 4) / 2)
    assert metrics.mean_interval(tasks, metrics.speedup, seed=0) == pytest.approx((3.0, 3.0))


def test_a_slow_answer_is_in_the_figure() -> None:
    pairs = [pair(10.0, 5.0)] * 9
    assert metrics.speedup([*pairs, pair(10.0, 500.0)]) == pytest.approx(100 / 545)


def test_an_answer_of_one_token_measures_nothing() -> None:
    assert metrics.speedup([NOTHING] * 3) == metrics.tau([NOTHING] * 3) == 0.0
    interval = metrics.interval([NOTHING] * 3, metrics.speedup, seed=0)
    assert interval == (0.0, 0.0)
    name, why = metrics.verdict(interval, 0.0)
    assert name == "no_tokens"
    assert "no tokens to measure" in why
    some = metrics.interval([NOTHING, pair(10.0, 5.0)], metrics.speedup, seed=0)
    assert some == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((1.1, 1.4), "faster"),
        ((0.9, 1.1), "undecided"),
        ((0.7, 0.9), "slower"),
        ((1.8, 2.0), "measurement_error"),
    ],
)
def test_a_speedup_above_tau_is_an_error(interval: tuple[float, float], expected: str) -> None:
    assert metrics.verdict(interval, tau=1.7)[0] == expected


def test_the_cost_model() -> None:
    assert metrics.predicted_speedup(2.0, one_row=10, verify=12, draft=3) == pytest.approx(20 / 15)


@pytest.mark.parametrize(
    ("predicted", "interval", "holds"),
    [(1.14, (0.99, 1.01), True), (1.16, (0.99, 1.01), False), (1.16, (0.8, 1.2), True)],
)
def test_a_cost_model_holds_within_15_percent_or_half_the_interval(
    predicted: float, interval: tuple[float, float], holds: bool
) -> None:
    assert metrics.agrees(predicted, 1.0, interval) is holds


def test_latencies() -> None:
    """Two answers; the first emits three tokens in its second round, at once."""
    found = metrics.latency([[1.0, 2.0, 2.0, 2.0, 4.0], [3.0, 3.5]])
    assert found.first_s == pytest.approx(2.0)
    assert found.token_s == pytest.approx((3.0 + 0.5) / 5)
    assert found.wait_p50_s == pytest.approx(1.0)
    assert found.wait_p95_s == pytest.approx(1.9)
    assert metrics.latency([[0.5]]).token_s == 0.0
    with pytest.raises(ValueError, match="one token"):
        metrics.latency([[]])
