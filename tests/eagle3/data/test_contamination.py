from __future__ import annotations

import pytest

from eagle3.data.contamination import overlaps

QUESTION = (
    "Darrell and Allen's ages are in the ratio of 7 to 11. If their total age now is 162, "
    "calculate Allen's age ten years from now."
)
OTHER = "Write a short poem about the sea in winter, in four lines that rhyme with each other."


def found(
    train: list[list[str]], test: list[list[str]], threshold: float = 0.5
) -> list[tuple[int, int, float]]:
    return [(o.train, o.test, round(o.share, 2)) for o in overlaps(train, test, threshold)]


def test_a_question_inside_a_longer_prompt_is_found() -> None:
    train = [[OTHER], [f"Please help me with this. {QUESTION.upper()} Thank you!"]]
    assert found(train, [["Name a river in France that ends in the sea."], [QUESTION]]) == [
        (1, 1, 1.0)
    ]


def test_any_turn_of_either_side_counts() -> None:
    train = [["Hello there, how are you?", QUESTION]]
    assert found(train, [[OTHER, QUESTION]]) == [(0, 0, 1.0)]


@pytest.mark.parametrize(("words", "threshold", "is_found"), [(14, 0.5, True), (10, 0.5, False)])
def test_half_of_its_words_is_the_line(words: int, threshold: float, is_found: bool) -> None:
    part = " ".join(QUESTION.split()[:words])
    assert bool(found([[f"{part} and something else of my own"]], [[QUESTION]])) == is_found


# "Allen's" is two words here.
def test_seven_words_in_common_are_nothing() -> None:
    assert found([[" ".join(QUESTION.split()[:6])]], [[QUESTION]], 0.01) == []


def test_short_questions_are_found_by_their_equals() -> None:
    train = [["who wrote hamlet"], ["Who wrote Hamlet, and when?"], ["Hi", "Who wrote Hamlet?"]]
    assert found(train, [["Who wrote Hamlet?"]]) == [(0, 0, 1.0)]


def test_a_short_later_turn_of_a_test_is_no_question() -> None:
    assert found([["Go on."]], [[OTHER, "Go on."]]) == []


def test_common_wording_does_not_count() -> None:
    frame = "You are the assistant of a shop that sells garden tools. Be polite and be brief. " * 3
    train = [[f"{frame}Where is the order that I made on day {i}?"] for i in range(30)]
    test = [[f"{frame}Can a spade be sent back when it has been used once or twice already?"]]
    assert found(train, test) == []
    copied = [*train, [test[0][0].lower()]]
    assert [hit[0] for hit in found(copied, test)] == [30]


def test_nothing_to_compare() -> None:
    assert found([], [[QUESTION]]) == found([[QUESTION]], []) == found([[]], [[]]) == []
