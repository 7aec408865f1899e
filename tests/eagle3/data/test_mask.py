from __future__ import annotations

from eagle3.data.mask import supervised_rows


def rows(spans: list[tuple[int, int]], length: int, step: int, steps: int = 3) -> list[int]:
    return supervised_rows(spans, length, steps)[step].nonzero()[:, 0].tolist()


def test_two_turn_chat_position_by_position() -> None:
    # position  0 1 2 3 4 5 6 7 8 9 10 11 12
    # token     u u u A B C E u u D  F  G  E     answers at 3..6 and 9..12, E the end of turn
    spans = [(3, 7), (9, 13)]
    # A row is judged by its input token x[j+1]: row 2 takes in A, the first answer's first token,
    # and predicts B. Row 1 would predict A itself, which drafting never does.
    assert rows(spans, 13, 0) == [2, 3, 4, 8, 9, 10]
    assert rows(spans, 13, 1) == [2, 3, 8, 9]
    assert rows(spans, 13, 2) == [2, 8]


def test_label_never_leaves_the_answer() -> None:
    for k in range(3):
        mask = supervised_rows([(3, 7)], 10, 3)[k]
        for j in mask.nonzero()[:, 0].tolist():
            assert all(3 <= p < 7 for p in range(j + 1, j + 3 + k))
        inside = [j for j in range(10) if all(3 <= p < 7 for p in range(j + 1, j + 3 + k))]
        assert mask.nonzero()[:, 0].tolist() == inside


def test_short_and_empty_answers_have_no_rows() -> None:
    assert not supervised_rows([(2, 3), (5, 5)], 8, 2).any()


def test_answer_at_the_very_start() -> None:
    assert rows([(0, 4)], 4, 0) == [0, 1]
