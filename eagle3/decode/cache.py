"""K/V memory that is preallocated, appended in place and rolled back by index.

Shapes: B sequences, N key/value heads, M capacity, K rows in use, Q new rows, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KVRows:
    """K and V of one attention layer."""

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch, self.capacity = batch, capacity
        self.k_BNMD: Tensor | None = None
        self.v_BNMD: Tensor | None = None

    def write(self, k_BNQD: Tensor, v_BNQD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Put new rows at `start`; return views of all rows up to their end, each [B, N, K, D]."""
        end = start + k_BNQD.shape[2]
        assert end <= self.capacity, f"cache of {self.capacity} rows asked to hold {end}"
        if self.k_BNMD is None or self.v_BNMD is None:
            _, n, _, d = k_BNQD.shape
            self.k_BNMD = k_BNQD.new_empty(self.batch, n, self.capacity, d)
            self.v_BNMD = v_BNQD.new_empty(self.batch, n, self.capacity, v_BNQD.shape[3])
        self.k_BNMD[:, :, start:end] = k_BNQD
        self.v_BNMD[:, :, start:end] = v_BNQD
        return self.k_BNMD[:, :, :end], self.v_BNMD[:, :, :end]

    def move(self, source: Tensor, start: int) -> None:
        """Copy rows `source` (1-D indices) to `start`, `start + 1`, …"""
        if self.k_BNMD is None or self.v_BNMD is None:
            return
        end = start + len(source)
        self.k_BNMD[:, :, start:end] = self.k_BNMD[:, :, source]
        self.v_BNMD[:, :, start:end] = self.v_BNMD[:, :, source]

    def select(self, rows: Tensor) -> None:
        """Keep these sequences of the batch."""
        self.batch = len(rows)
        if self.k_BNMD is not None and self.v_BNMD is not None:
            self.k_BNMD, self.v_BNMD = self.k_BNMD[rows], self.v_BNMD[rows]


class RollbackCache:
    """The cache of a whole target; takes the place of a transformers `Cache` in its forward.

    `length` counts the rows that stand. A forward writes its rows after them; the caller then says
    with `advance` how many of these stand, or with `keep` which ones.
    """

    def __init__(self, num_layers: int, batch: int, capacity: int) -> None:
        self.layers = [KVRows(batch, capacity) for _ in range(num_layers)]
        self.batch, self.capacity = batch, capacity
        self.length = 0
        self.positions_BM: Tensor | None = None

    def place(self, positions_BQ: Tensor) -> Tensor:
        """Note the positions of the rows to be written; returns those of all rows, [B, K].

        For targets with sliding windows, which are counted in positions: in a tree, and behind
        padding, a row's position is not its place in the cache.
        """
        end = self.length + positions_BQ.shape[1]
        if self.positions_BM is None:
            self.positions_BM = positions_BQ.new_zeros(self.batch, self.capacity)
        self.positions_BM[:, self.length : end] = positions_BQ
        return self.positions_BM[:, :end]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each attention layer of transformers (its own name and order)."""
        return self.layers[layer_idx].write(key_states, value_states, self.length)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows that stand (name of transformers)."""
        return self.length

    def advance(self, rows: int) -> None:
        self.length += rows

    def keep(self, offsets: list[int]) -> None:
        """Of the rows written last, keep those at these ascending offsets, in that order."""
        if offsets != list(range(len(offsets))):
            source = torch.tensor(offsets) + self.length
            for layer in self.layers:
                layer.move(source, self.length)
            if self.positions_BM is not None:
                end = self.length + len(offsets)
                self.positions_BM[:, self.length : end] = self.positions_BM[:, source]
        self.length += len(offsets)

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.length = length

    def select(self, rows: Tensor) -> None:
        """Keep these sequences of the batch."""
        self.batch = len(rows)
        for layer in self.layers:
            layer.select(rows)
        if self.positions_BM is not None:
            self.positions_BM = self.positions_BM[rows]
