"""What the engine asks of a drafting method, whatever the method is.

A drafter is weights and settings; a session is its memory of the sequences that one engine decodes
together, each in a slot of its own. A round of the engine:

    proposals = session.propose({slot: room, …})    trees of guesses after each root
    (the target reads root and guesses of every slot in one forward; some guesses stand)
    session.observe({slot: Seen(…), …})             what it read, and what it says there

Shapes: R rows, N nodes of a tree (root included), H target hidden size, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Tree
from eagle3.decode.verify import Typical


@dataclass(frozen=True)
class Proposal:
    """Guesses that follow the root, the last token that was emitted."""

    tree: Tree
    q_NV: Tensor | None = None
    """None: the tree is a deterministic function of what was observed, so each guess is one-hot.
    Else the guesses were drawn, and this is the distribution that each was drawn from, float64
    [N - 1, V], in the order of the nodes; the tree is a chain then."""
    typical: Typical | None = None
    """A rule that is not exact, in place of the two that are; greedy decoding ignores it."""


@dataclass(frozen=True)
class Seen:
    """Rows of one sequence that stand and that the target has read since the last call."""

    ids: Sequence[int]
    """The tokens read: the prompt at first, then the root and the accepted guesses."""
    next_ids: Sequence[int]
    """The token that follows each of them; the last one is the new root."""
    features_R3H: Tensor | None
    """Captured features of these rows, for a drafter that names `capture_layers`."""
    hidden_RH: Tensor | None
    """The final hidden state of these rows (after the norm), for one that `reads_hidden`."""
    choices_N: Sequence[int] = ()
    """The target's most likely next token at *every* node that was proposed, root first, refused
    ones too; empty after the prefill."""

    def part(self, rows: slice) -> Seen:
        """Some of these rows."""
        features, hidden = self.features_R3H, self.hidden_RH
        return Seen(
            self.ids[rows],
            self.next_ids[rows],
            None if features is None else features[rows],
            None if hidden is None else hidden[rows],
            self.choices_N,
        )


class Session(Protocol):
    """A drafter's memory of the sequences that are decoded together."""

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        """A new sequence takes this slot. Random guesses draw from `generator` alone."""
        ...

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        """Guesses for these slots; the tree of a slot is at most as deep as its `room` (at least
        1), and empty where the method has no guess."""
        ...

    def observe(self, seen: Mapping[int, Seen]) -> None:
        """Take in what now stands. Called once for a slot's prefill, then after every round unless
        the sequence is finished."""
        ...

    def close(self, slot: int) -> None:
        """The sequence is finished; its slot may be opened again."""
        ...


class Drafter(Protocol):
    """A method that guesses what the target will say."""

    @property
    def name(self) -> str:
        """As in a table of methods: `eagle3`, `medusa`, `pld`, …"""
        ...

    @property
    def capture_layers(self) -> tuple[int, int, int] | None:
        """Layers of the target whose features it reads (`Seen.features_R3H`); None: none."""
        ...

    @property
    def reads_hidden(self) -> bool: ...

    @property
    def lossless(self) -> bool:
        """Whether its guesses are verified exactly: the output is the target's own, or drawn from
        the target's own distribution."""
        ...

    @property
    def most_nodes(self) -> int:
        """Guesses of its largest tree; the engine makes room for so many rows and the root."""
        ...

    def session(self, slots: int, capacity: int) -> Session:
        """A session of `slots` sequences of at most `capacity` tokens each."""
        ...
