"""The trainer's chain, counted as engines count it."""

from __future__ import annotations

from eagle3.parity.agree import Rounds, first_apart
from eagle3.parity.chain import Expected, _Count, _walk

DEPTH = 3


def walked(agree: list[int], tokens: int) -> Expected:
    counts = [_Count(DEPTH), _Count(DEPTH)]
    _walk(counts, agree, tokens, DEPTH)
    whole, cut = (Rounds(count.rounds, tuple(count.accepted)) for count in counts)
    return Expected(whole, cut)


def test_the_last_round_is_counted_in_both_ways() -> None:
    """8 tokens: one of the prefill, a round of 4, and 3 are left, of which a draft has 2."""
    found = walked([3] * 10, 8)
    assert found.whole == Rounds(2, (2, 2, 2))
    assert found.cut == Rounds(2, (2, 2, 1))


def test_a_last_token_may_be_no_round_of_speculation() -> None:
    found = walked([3] * 10, 6)
    assert found.whole == Rounds(2, (2, 2, 2))
    assert found.cut == Rounds(1, (1, 1, 1))


def test_a_wrong_guess_ends_a_round() -> None:
    """Rounds start after tokens 1, 2 and 5 of the answer."""
    found = walked([0, 2, 9, 9, 1, 9, 9], 7)
    assert found.whole == Rounds(3, (2, 1, 0))


def test_an_engine_agrees_by_its_own_way_of_counting() -> None:
    expected = Expected(Rounds(200, (200, 200, 200)), Rounds(200, (200, 200, 150)))
    for counted in (expected.whole, expected.cut):
        assert first_apart(expected.places(counted)) is None
    assert first_apart(expected.places(Rounds(200, (200, 200, 20)))) == 2
