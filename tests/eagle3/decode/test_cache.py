"""Lines of different lengths: what stands of each is what was kept of it, whatever was written."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from eagle3.decode import cache as module
from eagle3.decode.attention import causal_mask, visible
from eagle3.decode.cache import RollbackCache

SLOTS, CAPACITY = 4, 200


def rows(numbers: list[list[float]]) -> Tensor:
    """K (or V) of rows that hold these numbers, [B, 2, Q, 3]."""
    return torch.tensor(numbers)[:, None, :, None].expand(-1, 2, -1, 3).contiguous()


@pytest.mark.parametrize("seed", range(6))
def test_lines_hold_what_was_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random openings, forwards, kept rows, rollbacks and closings, beside plain lists."""
    monkeypatch.setattr(module, "LEAST_ROWS", 8)  # so that it grows
    chance = random.Random(seed)
    cache = RollbackCache(2, SLOTS, CAPACITY, in_use=False)
    held: dict[int, list[float]] = {}
    written = 0.0
    for _ in range(120):
        if held and chance.random() < 0.1:
            slot = chance.choice(list(held))
            cache.close(slot)
            del held[slot]
        free = [slot for slot in range(SLOTS) if slot not in held]
        if free and (not held or chance.random() < 0.2):
            slot = chance.choice(free)
            assert cache.open(slot) == len(held)
            held[slot] = []
        if chance.random() < 0.1:
            held = {slot: text[: chance.randint(0, len(text))] for slot, text in held.items()}
            cache.rollback(*[len(held[slot]) for slot in cache.slots])
        line = chance.randrange(len(held))
        slots = cache.slots[line : chance.randint(line + 1, len(held))]
        count = chance.randint(1, 4)
        new = [[written + count * b + q for q in range(count)] for b in range(len(slots))]
        written += count * len(slots)
        if max(len(held[slot]) for slot in slots) + count > CAPACITY:
            break
        place = cache.stage(len(slots), count, line, torch.device("cpu"))
        cache.place(place.following().expand(len(slots), -1))
        for layer in range(2):
            keys, values = cache.update(rows(new) + layer, -rows(new), layer)
            for b, slot in enumerate(slots):
                seen = [*held[slot], *new[b]]
                assert (keys[b, 0, : len(seen), 0] - layer).tolist() == seen
                assert values[b, 1, : len(seen), 2].tolist() == [-x for x in seen]
        kept = [sorted(chance.sample(range(count), chance.randint(0, count))) for _ in slots]
        cache.settle(kept, line)
        for b, slot in enumerate(slots):
            held[slot] += [new[b][offset] for offset in kept[b]]
        assert cache.lengths == [len(held[slot]) for slot in cache.slots]
    assert written > 100


@pytest.mark.parametrize("past", [[3], [2, 2], [0, 4, 1]])
def test_new_rows_see_their_own_past_and_what_they_are_told(past: list[int]) -> None:
    own = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = visible(own, past)
    for b in range(len(mask)):
        expected = torch.zeros(3, max(past) + 3, dtype=torch.bool)
        expected[:, : past[b]] = True
        expected[:, past[b] : past[b] + 3] = own
        assert torch.equal(mask[b, 0], expected)


def test_ordinary_text_needs_a_mask_only_where_something_is_hidden() -> None:
    assert causal_mask(1, [5]) is None
    assert causal_mask(1, [5, 5]) is None
    ragged = causal_mask(1, [1, 3])
    assert ragged is not None
    assert ragged[:, 0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
