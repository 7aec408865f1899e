"""When two counts are of one draft."""

from __future__ import annotations

import pytest

from eagle3.parity.agree import Rounds, first_apart, positions


def test_rates_are_conditional() -> None:
    found = Rounds(100, (50, 20))
    assert found.by_position == [0.5, 0.4]
    assert found.tau == pytest.approx(1.7)


def test_three_points_agree_however_many_rounds() -> None:
    many = Rounds(100_000, (45_000,))
    assert first_apart(positions(many, Rounds(100_000, (47_900,)))) is None
    assert first_apart(positions(many, Rounds(100_000, (48_100,)))) == 0


def test_few_rounds_agree_within_their_interval() -> None:
    few = Rounds(40, (18,))
    assert first_apart(positions(few, Rounds(40, (14,)))) is None
    assert first_apart(positions(few, Rounds(40, (4,)))) == 0


def test_one_layer_off_is_apart() -> None:
    """vLLM #43671: 45% became 10%."""
    assert first_apart(positions(Rounds(300, (135,)), Rounds(400, (40,)))) == 0


def test_a_later_position_may_be_the_one_apart() -> None:
    found = positions(Rounds(1000, (600, 400)), Rounds(1000, (600, 200)))
    assert first_apart(found) == 1


def test_nothing_drafted() -> None:
    assert positions(Rounds(10, (5,)), Rounds()) == []
    assert Rounds().tau == 1
