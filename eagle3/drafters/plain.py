"""No guesses: plain decoding, in the same loop as every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.sampling import Sampling


@dataclass(frozen=True)
class Plain:
    name = "plain"
    capture_layers = None
    reads_hidden = False
    lossless = True
    most_nodes = 0

    def session(self, slots: int, capacity: int) -> PlainSession:
        return PlainSession()


class PlainSession:
    """Remembers nothing."""

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None: ...

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        return {}

    def observe(self, seen: Mapping[int, Seen]) -> None: ...

    def close(self, slot: int) -> None: ...
