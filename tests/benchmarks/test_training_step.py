"""The training benchmark: equal steps, a table, and memory counted without computing."""

from __future__ import annotations

import pytest
import torch

from benchmarks.longest import GRAIN, Full, Ledger, counted, search
from benchmarks.steps_apart import Measured
from benchmarks.training_case import Case, Rows, Step
from benchmarks.training_step import table

SMALL = Case(
    length=96, hidden=16, intermediate=24, heads=4, groups=2, head_dim=8, draft_vocab=64, steps=3
)


@pytest.mark.parametrize("rows", ["every", "answers"])
def test_both_steps_train_alike(rows: Rows) -> None:
    case = Case(**{**vars(SMALL), "rows": rows, "length": 300})
    ours, plain = Step(case, "ours"), Step(case, "plain")
    for _ in range(3):
        assert ours() == pytest.approx(plain(), rel=1e-4)


def test_answers_are_six_rows_of_ten() -> None:
    first, *later = Step(
        Case(**{**vars(SMALL), "rows": "answers", "length": 2048}), "ours"
    ).supervised
    assert first == pytest.approx(0.6, abs=0.01)
    assert later == sorted(later, reverse=True)


def test_the_table_says_how_much_faster_and_smaller() -> None:
    def measured(wall: float, peak: int) -> Measured:
        return Measured(1.0, wall, wall / 2, peak * 2**30, 2**30, [0.6, 0.5])

    found = table(Case(), {"ours": [measured(2, 2), measured(4, 2)], "plain": [measured(6, 8)] * 2})
    assert "2.25 (1.50 to 3.00) times as fast by the wall's clock" in found
    assert "0.25 of the peak memory" in found
    assert "682.7" in found  # 2,048 tokens in 3 s


def test_memory_is_counted_as_it_comes_and_goes() -> None:
    mib = 2**20
    with Ledger(limit=40 * mib) as ledger:
        a = torch.randn(1024, 1024)
        b = (a @ a).softmax(-1)  # for a moment three matrices of 4 MiB
        view = b.view(-1)[:5]
        del b
        c = a * 2
        assert view.shape == (5,)
        with pytest.raises(Full):
            torch.zeros(10 * mib)
    assert ledger.peak == (4 + 4 + 4 + 40) * mib
    del c


def test_counting_sees_what_a_method_keeps() -> None:
    """The plain one keeps logits of every row and step; twice the steps are about twice that."""
    case = Case(**{**vars(SMALL), "length": 512, "draft_vocab": 4096})
    more = Case(**{**vars(case), "steps": 6})
    logits = 4 * case.length * case.draft_vocab
    few, many = counted(case, "plain", 2**40), counted(more, "plain", 2**40)
    assert few is not None
    assert many is not None
    assert 2.5 * logits < many - few < 4.5 * logits
    ours = counted(more, "ours", 2**40)
    assert ours is not None
    assert ours < many - 2 * logits
    assert counted(case, "plain", logits) is None


@pytest.mark.parametrize("squared", [0, 7])
def test_the_longest_length_is_found_in_few_tries(squared: int) -> None:
    limit, tried = 20_000_000, []

    def peak(length: int) -> int | None:
        tried.append(length)
        bytes_ = 1_000_000 + max(0, 900 * (length - 700)) + squared * length**2 // 100
        return bytes_ if bytes_ <= limit else None

    found = search(peak, limit)
    assert found % GRAIN == 0
    assert peak(found) is not None
    assert peak(found + GRAIN) is None
    assert len(tried) < 20
    assert search(lambda _: None, limit) == 0
