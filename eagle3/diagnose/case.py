"""What is known of a draft that accepts too little, and what a cause has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eagle3.diagnose.evidence import Answers
from eagle3.diagnose.reading import Reading
from eagle3.target import Target

Cause = Literal[
    "missing tensors",
    "tensor shapes",
    "broken values",
    "wrong target or revision",
    "engine flags",
    "engine",
    "d2t semantics",
    "captured layers",
    "feature or embedding order",
    "feedback and norms",
    "RoPE",
    "heads",
    "tensors exchanged",
    "head or norm of the target",
    "dtype overflow",
    "embedding",
    "tokenizer or template",
    "domain shift",
    "draft vocabulary coverage",
]


@dataclass(frozen=True)
class Rendered:
    """The user's prompts as token ids, and how they became that."""

    how: str
    prompts: list[list[int]]


@dataclass(frozen=True)
class Case:
    """A draft, its target, and the answers that it is measured on."""

    target: Target
    reading: Reading
    """The draft as its own files say it is to be read."""
    raw: dict[str, Any]
    """Its `config.json`."""
    answers: Answers
    ask: Callable[[Target, list[list[int]]], Answers]
    """Has a target answer prompts, as `answers` were made."""
    prompts: list[list[int]] = field(default_factory=list)
    """The prompts of `answers`."""
    record: dict[str, Any] = field(default_factory=dict)
    """What a bundle's `target.json` says of the target that the draft was trained for."""
    folder: Path | None = None
    """The target's directory."""
    others: tuple[Path, ...] = ()
    """Directories of other targets that it may have been trained for."""
    renderings: tuple[Rendered, ...] = ()
    """Other ways to make token ids of the same prompts."""
    heldout: list[list[int]] = field(default_factory=list)
    """Prompts like those of training; empty where `answers` are to these."""
    flags: str = ""
    """The serving engine's command line, as the user starts it."""


@dataclass(frozen=True)
class Trial:
    """A correction, to be measured."""

    cause: Cause
    correction: str
    reading: Reading
    answers: Answers | None = None
    """Other answers than the case's own, where these are what is corrected."""
    bound: bool = False
    """Not a correction of the draft, but what would be without the obstacle; it counts where
    nothing else restores acceptance."""


@dataclass(frozen=True)
class Sign:
    """What files or settings show without any measurement."""

    cause: Cause
    text: str
    certain: bool = False
    """It breaks the draft in some engine, whatever is measured here."""


Finder = Callable[[Case], Iterator[Trial | Sign]]
"""A cause: one function each, in the files beside this one."""
