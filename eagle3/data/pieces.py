"""A sample's text by tokens, each with what it is to training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

MOST_JOINED = 8
"""Tokens that one character may take."""

Kind = Literal["prompt", "first", "answer", "outside", "cut"]
"""Of a token: read only; an answer's first, which the target itself gives; what the draft learns to
propose; the same, but not in the draft vocabulary; beyond the longest sample."""


@dataclass(frozen=True)
class Piece:
    """A token, or a few where one alone is no text."""

    text: str
    kind: Kind
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Shown:
    """A sample, piece by piece."""

    id: str
    split: str
    pieces: list[Piece]


def pieces(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    spans: Iterable[tuple[int, int]],
    limit: int,
    inside: set[int],
) -> list[Piece]:
    """A sample's text by tokens; the texts together are the sample's.

    Args:
        limit: where the sample is cut.
        inside: the draft vocabulary.
    """
    kinds: list[Kind] = ["prompt"] * len(ids)
    for start, end in spans:
        kinds[start:end] = ["answer" if i in inside else "outside" for i in ids[start:end]]
        kinds[start] = "first"
    kinds[limit:] = ["cut"] * max(0, len(ids) - limit)
    found: list[Piece] = []
    start = 0
    for end in range(1, len(ids) + 1):
        text = _text(tokenizer, ids, start, end)
        if text.endswith("�") and end < len(ids) and end - start < MOST_JOINED:
            continue  # a part of a character: the next tokens hold the rest
        found.append(Piece(text, kinds[start], tuple(ids[start:end])))
        start = end
    return found


def _text(tokenizer: PreTrainedTokenizerBase, ids: list[int], start: int, end: int) -> str:
    """The text of some tokens behind the one before them: alone, some lose a space."""
    before = ids[start - 1 : start] if start else []
    lead = str(tokenizer.decode(before)) if before else ""
    both = str(tokenizer.decode([*before, *ids[start:end]]))
    return both[len(lead) :] if both.startswith(lead) else str(tokenizer.decode(ids[start:end]))
