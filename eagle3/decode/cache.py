"""K/V memory of sequences of different lengths: appended in place and rolled back by index.

Each sequence has a line of its own, in which a row stands at its own place. The lines in use are
the first ones, without a gap, so that a forward reads them as one slice.

Shapes: B lines of a forward, N key/value heads, M rows of memory, K rows in use, Q new rows,
D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST_ROWS = 256
"""Memory of a cache that grows; it doubles from here to the cache's capacity."""


@dataclass(frozen=True)
class Place:
    """Where a forward writes: `rows` rows after those that stand, in lines from `line` on."""

    line: int
    starts: Sequence[int]
    """Rows that stand in each of these lines."""
    rows: int
    index: tuple[Tensor, Tensor] | None = None
    """Lines [B, 1] and places [B, Q], where the lines' lengths differ."""

    @classmethod
    def of(
        cls, line: int, starts: Sequence[int], rows: int, device: torch.device | None = None
    ) -> Place:
        if all(start == starts[0] for start in starts):
            return cls(line, starts, rows)
        lines_B = torch.arange(line, line + len(starts), device=device)
        starts_B = torch.tensor(starts, device=device)
        places_BQ = starts_B[:, None] + torch.arange(rows, device=device)
        return cls(line, starts, rows, (lines_B[:, None], places_BQ))

    def following(self, device: torch.device | None = None) -> Tensor:
        """The places of the new rows, [B or 1, Q]: the positions of text that goes on."""
        if self.index is not None:
            return self.index[1]
        return torch.arange(self.starts[0], self.end, device=device)[None]

    @property
    def lines(self) -> slice:
        return slice(self.line, self.line + len(self.starts))

    @property
    def end(self) -> int:
        return max(self.starts) + self.rows


class KVRows:
    """K and V of one attention layer."""

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch, self.capacity = batch, capacity
        self.k_BNMD: Tensor | None = None
        self.v_BNMD: Tensor | None = None

    def write(self, k_BNQD: Tensor, v_BNQD: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Put new rows at their place; return views of all rows up to the longest line's end."""
        assert place.end <= self.capacity, f"cache of {self.capacity} rows asked for {place.end}"
        k_BNMD = self.k_BNMD = self._room(self.k_BNMD, k_BNQD, place.end)
        v_BNMD = self.v_BNMD = self._room(self.v_BNMD, v_BNQD, place.end)
        if place.index is None:
            rows = slice(place.starts[0], place.end)
            k_BNMD[place.lines, :, rows] = k_BNQD
            v_BNMD[place.lines, :, rows] = v_BNQD
        else:
            lines_B1, places_BQ = place.index
            k_BNMD[lines_B1, :, places_BQ] = k_BNQD.transpose(1, 2)
            v_BNMD[lines_B1, :, places_BQ] = v_BNQD.transpose(1, 2)
        return k_BNMD[place.lines, :, : place.end], v_BNMD[place.lines, :, : place.end]

    def _room(self, held: Tensor | None, new: Tensor, end: int) -> Tensor:
        """Memory of at least `end` rows. It starts as zeros, for masked rows are read too."""
        have = 0 if held is None else held.shape[2]
        if held is not None and end <= have:
            return held
        rows = min(self.capacity, max(2 * have, end, LEAST_ROWS))
        grown = new.new_zeros(self.batch, new.shape[1], rows, new.shape[3])
        if held is not None:
            grown[:, :, :have] = held
        return grown

    def move(self, line_R: Tensor, source_R: Tensor, place_R: Tensor) -> None:
        """Copy rows of lines to other places in the same lines."""
        for held in (self.k_BNMD, self.v_BNMD):
            if held is not None:
                held[line_R, :, place_R] = held[line_R, :, source_R]

    def copy_line(self, source: int, line: int, rows: int) -> None:
        for held in (self.k_BNMD, self.v_BNMD):
            if held is not None:
                held[line, :, :rows] = held[source, :, :rows]

    def select(self, rows: Tensor) -> None:
        """Keep these sequences of the batch."""
        self.batch = len(rows)
        if self.k_BNMD is not None and self.v_BNMD is not None:
            self.k_BNMD, self.v_BNMD = self.k_BNMD[rows], self.v_BNMD[rows]


class RollbackCache:
    """The cache of a whole target; takes the place of a transformers `Cache` in its forward.

    `lengths` counts the rows that stand in each line. A forward writes its rows after them; the
    caller then says which of these stand.

    Args:
        batch: lines at most.
        in_use: all lines are in use from the start; otherwise those that are opened.
    """

    def __init__(self, num_layers: int, batch: int, capacity: int, in_use: bool = True) -> None:
        self.layers = [KVRows(batch, capacity) for _ in range(num_layers)]
        self.batch, self.capacity = batch, capacity
        self.slots = list(range(batch)) if in_use else []
        """Whose line each one is, in order."""
        self.lengths = [0] * len(self.slots)
        self.positions_BM: Tensor | None = None
        self._place = Place(0, self.lengths, 0)

    # --- lines ----------------------------------------------------------------------------------

    def open(self, slot: int) -> int:
        """Give a slot the next line, empty; returns the line."""
        assert len(self.slots) < self.batch
        assert slot not in self.slots
        self.slots.append(slot)
        self.lengths.append(0)
        return len(self.slots) - 1

    def close(self, slot: int) -> None:
        """Give a slot's line up; the last line moves into its place."""
        line, last = self.slots.index(slot), len(self.slots) - 1
        if line < last:
            rows = self.lengths[last]
            for layer in self.layers:
                layer.copy_line(last, line, rows)
            if self.positions_BM is not None:
                self.positions_BM[line, :rows] = self.positions_BM[last, :rows]
        self.slots[line], self.lengths[line] = self.slots[last], self.lengths[last]
        self.slots.pop()
        self.lengths.pop()

    @property
    def length(self) -> int:
        """Rows that stand, where that is the same for all lines."""
        assert min(self.lengths) == max(self.lengths)
        return self.lengths[0]

    # --- a forward ------------------------------------------------------------------------------

    def stage(self, batch: int, rows: int, line: int, device: torch.device) -> Place:
        """Say where the next forward writes; `update` follows it, layer by layer."""
        starts = self.lengths[line : line + batch]
        assert len(starts) == batch, f"{batch} sequences for {len(self.lengths)} lines of a cache"
        self._place = Place.of(line, starts, rows, device)
        return self._place

    def place(self, positions_BQ: Tensor) -> Tensor:
        """Note the positions of the rows to be written; returns those of all rows, [B, K].

        For targets with sliding windows, which are counted in positions: in a tree, and behind
        padding, a row's position is not its place in the cache.
        """
        at = self._place
        if self.positions_BM is None:
            self.positions_BM = positions_BQ.new_zeros(self.batch, self.capacity)
        if at.index is None:
            self.positions_BM[at.lines, at.starts[0] : at.end] = positions_BQ
        else:
            self.positions_BM[at.index] = positions_BQ
        return self.positions_BM[at.lines, : at.end]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each attention layer of transformers (its own name and order)."""
        return self.layers[layer_idx].write(key_states, value_states, self._place)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows that stand in the longest of the lines (name of transformers)."""
        return max(self._place.starts, default=0)

    # --- what stands ----------------------------------------------------------------------------

    def advance(self, rows: int) -> None:
        """In every line, the first `rows` of the rows written last stand."""
        self.lengths[:] = [length + rows for length in self.lengths]

    def keep(self, offsets: Sequence[int]) -> None:
        """In every line, of the rows written last keep those at these ascending offsets."""
        self.settle([offsets] * len(self.lengths))

    def settle(self, kept_B: Sequence[Sequence[int]], line: int = 0) -> None:
        """In each line from `line` on, of the rows written last keep those at these ascending
        offsets, in that order."""
        moved = [
            (b, self.lengths[b] + offset, self.lengths[b] + n)
            for b, offsets in enumerate(kept_B, start=line)
            for n, offset in enumerate(offsets)
            if offset != n
        ]
        if moved:
            held = self.layers[0].k_BNMD
            line_R, source_R, place_R = torch.tensor(
                moved, device=None if held is None else held.device
            ).T
            for layer in self.layers:
                layer.move(line_R, source_R, place_R)
            if self.positions_BM is not None:
                self.positions_BM[line_R, place_R] = self.positions_BM[line_R, source_R]
        for b, offsets in enumerate(kept_B, start=line):
            self.lengths[b] += len(offsets)

    def rollback(self, *lengths: int) -> None:
        """Only so many rows stand in each line; one number is for all lines."""
        wanted = list(lengths) * (len(self.lengths) if len(lengths) == 1 else 1)
        assert all(0 <= new <= old for new, old in zip(wanted, self.lengths, strict=True))
        self.lengths[:] = wanted

    def select(self, rows: Tensor) -> None:
        """Keep these sequences of the batch, or make several of one."""
        self.batch = len(rows)
        self.slots = list(range(self.batch))
        self.lengths[:] = [self.lengths[row] for row in rows.tolist()]
        for layer in self.layers:
            layer.select(rows)
        if self.positions_BM is not None:
            self.positions_BM = self.positions_BM[rows]
