"""The draft vocabulary and its two maps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3 import vocab


@settings(deadline=None, max_examples=50)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    size=st.integers(1, 70),
    data=st.data(),
)
def test_round_trip(counts: list[int], size: int, data: st.DataObject) -> None:
    special = data.draw(st.sets(st.integers(0, len(counts) - 1), max_size=min(size, len(counts))))
    kept = vocab.choose(torch.tensor(counts), size, special)
    d2t, t2d = vocab.maps(kept, len(counts))
    vocab.check(d2t, t2d)
    assert len(kept) == min(size, len(counts))
    assert special <= set(kept.tolist())
    assert torch.equal(vocab.kept_ids(d2t), kept)
    assert torch.equal(t2d.nonzero()[:, 0], kept)
    draft_id = torch.cumsum(t2d, 0) - 1
    assert torch.equal(draft_id[kept], torch.arange(len(kept)))


def test_the_most_frequent_are_kept_and_gaps_are_filled_from_below() -> None:
    counts = torch.tensor([0, 0, 9, 0, 3, 0, 5])
    assert vocab.choose(counts, 3, [0]).tolist() == [0, 2, 6]
    assert vocab.choose(counts, 5).tolist() == [0, 1, 2, 4, 6]


def test_whole_vocabulary_is_the_identity() -> None:
    d2t, t2d = vocab.maps(vocab.choose(torch.zeros(6, dtype=torch.int64), 99), 6)
    assert not bool(d2t.any())
    assert bool(t2d.all())


def test_absolute_ids_in_place_of_offsets_are_refused() -> None:
    kept = torch.tensor([2, 5, 7])
    _, t2d = vocab.maps(kept, 9)
    with pytest.raises(ValueError, match=r"outside|different|ascending"):
        vocab.check(kept, t2d)


def test_too_many_special_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold 3 special ids"):
        vocab.choose(torch.zeros(9, dtype=torch.int64), 2, [1, 2, 3])
