"""EAGLE-3 as a drafting method: a tree grown by the draft network from the target's own features.

After each round the draft reads the *true* features of the tokens that stand; the K/V that it made
of its own guesses is gone by then. Keeping those costs 8 to 15% of acceptance.

Shapes: B sequences, R rows, N nodes, H hidden size, 3H the three captured features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape, Tree
from eagle3.draft import DraftCache, LayerDraft
from eagle3.drafters.grow import grow

ROWS = 512
"""Rows of a prompt that are read at once: a mask of all of them would grow with their square."""


@dataclass(frozen=True)
class Eagle3:
    """A trained draft, and how its trees are grown."""

    draft: LayerDraft
    shape: Shape = field(default_factory=Shape)

    name = "eagle3"
    reads_hidden = False
    lossless = True

    @property
    def capture_layers(self) -> tuple[int, int, int]:
        return self.draft.capture_layers

    @property
    def most_nodes(self) -> int:
        return self.shape.kept

    def session(self, slots: int, capacity: int) -> Eagle3Session:
        return Eagle3Session(self, slots, capacity)


class Eagle3Session:
    """A line of the draft's cache for each open slot, and the output of its last true row."""

    def __init__(self, drafter: Eagle3, slots: int, capacity: int) -> None:
        self.draft, self.shape = drafter.draft, drafter.shape
        guesses = self.shape.depth * self.shape.top_k
        self.cache = DraftCache(capacity + guesses, slots, in_use=False)
        self.root_out_H: dict[int, Tensor] = {}

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        self.cache.open(slot)

    def close(self, slot: int) -> None:
        self.cache.close(slot)
        self.root_out_H.pop(slot, None)

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        slots = self.cache.slots
        root_out_BH = torch.stack([self.root_out_H[slot] for slot in slots])
        depths = [room.get(slot, 0) for slot in slots]
        trees = self.trees(root_out_BH, depths)
        found = dict(zip(slots, trees, strict=True))
        return {slot: Proposal(found[slot]) for slot in room}

    def trees(self, root_out_BH: Tensor, room_B: Sequence[int]) -> list[Tree]:
        """A tree for each line, no deeper than its room."""
        return grow(self.draft, root_out_BH, self.cache, self.shape, room_B)

    def features(self, rows: Seen) -> Tensor | None:
        """What the draft reads of rows that stand, [R, features]."""
        return rows.features_R3H

    @torch.inference_mode()
    def observe(self, seen: Mapping[int, Seen]) -> None:
        longest = max(len(rows.ids) for rows in seen.values())
        for start in range(0, longest, ROWS):
            part = slice(start, start + ROWS)
            self._read({s: rows.part(part) for s, rows in seen.items() if start < len(rows.ids)})

    def _read(self, seen: Mapping[int, Seen]) -> None:
        """Read true rows: lines from the first to the last one of these slots, in one forward."""
        lines = {self.cache.slots.index(slot): rows for slot, rows in seen.items()}
        first, last = min(lines), max(lines)
        counts = [len(lines[b].ids) if b in lines else 0 for b in range(first, last + 1)]
        feature_BRF = self._features(lines, first, counts)
        device, longest = feature_BRF.device, max(counts)
        ids_BR = torch.tensor(
            [
                [*(lines[b].next_ids if b in lines else ()), *[0] * (longest - count)]
                for b, count in enumerate(counts, start=first)
            ],
            device=device,
        )
        start_B = torch.tensor(self.cache.lengths[first : last + 1], device=device)
        positions_BR = start_B[:, None] + torch.arange(longest, device=device)
        out_BRH = self.draft(
            ids_BR, self.draft.fuse(feature_BRF), positions_BR, self.cache, line=first
        )
        self.cache.settle([range(count) for count in counts], first)
        for b in lines:
            self.root_out_H[self.cache.slots[b]] = out_BRH[b - first, counts[b - first] - 1]

    def _features(self, lines: Mapping[int, Seen], first: int, counts: Sequence[int]) -> Tensor:
        """Features of all rows, [B, R, features]; zeros behind a sequence's own."""
        parts = {b: self.features(rows) for b, rows in lines.items()}
        some = parts[first]
        assert some is not None
        if len(counts) == 1:
            return some[None]
        feature_BRF = some.new_zeros(len(counts), max(counts), some.shape[-1])
        for b, part in parts.items():
            assert part is not None
            feature_BRF[b - first, : len(part)] = part
        return feature_BRF
