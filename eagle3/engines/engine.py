"""What every serving engine is to this package: start, generate, metrics, stop.

A target and a draft are directories here: the target as transformers saves it, the draft in the
official layout (`eagle3/export/official.py`). An engine that wants another format writes it into
its work directory before it starts. Prompts and answers are token ids: text would compare two
tokenizers along with two engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, Protocol

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Settings:
    """How an engine is started."""

    draft_tokens: int = 3
    """Length of the chain that is drafted in each round; 0 serves the target alone."""
    dtype: Dtype = "float32"
    context: int = 1024
    """Tokens of a prompt and its answer together, at most."""
    slots: int = 1
    """Sequences that are decoded at once, at most."""
    threads: int | None = None
    """CPU threads; as many as the engine likes where None."""
    memory_gib: float = 1.0
    """Room for the cache of keys and values."""
    p_min: float = 0.0
    """A draft stops where it is less sure than this; llama.cpp alone knows it."""
    port: int | None = None
    """Where it listens, on 127.0.0.1; a free port where None."""
    ready_seconds: float = 300.0
    """How long loading may take."""
    extra: tuple[str, ...] = ()
    """Further arguments of the engine's own command line."""


@dataclass(frozen=True)
class Sampling:
    """How answers are decoded; greedily at temperature 0."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    timeout_seconds: float = 600.0
    """An answer that takes longer ends in `EngineFailed`."""


@dataclass(frozen=True)
class Answer:
    """One prompt's answer."""

    tokens: tuple[int, ...]
    seconds: float
    """From the request to its last token."""
    first_token_seconds: float | None = None
    """From the request to its first token, where the engine streams."""


@dataclass(frozen=True)
class Drafted:
    """What was drafted and accepted since the start (definitions: docs/metrics.md)."""

    rounds: int = 0
    """Target forwards that verified a draft."""
    drafted: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = field(default=())
    """Rounds whose first n drafted tokens were all accepted, for n = 1, 2, …"""

    def __add__(self, more: Drafted) -> Drafted:
        at = zip_longest(self.accepted_at, more.accepted_at, fillvalue=0)
        return Drafted(
            self.rounds + more.rounds,
            self.drafted + more.drafted,
            self.accepted + more.accepted,
            tuple(n + m for n, m in at),
        )

    def __sub__(self, before: Drafted) -> Drafted:
        """What came since `before` was read from the same engine."""
        earlier = before.accepted_at + (0,) * (len(self.accepted_at) - len(before.accepted_at))
        return Drafted(
            self.rounds - before.rounds,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(n - e for n, e in zip(self.accepted_at, earlier, strict=True)),
        )

    @property
    def tau(self) -> float:
        """Tokens a target forward: 1 + accepted / rounds; 1 where nothing was drafted."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


class Running(Protocol):
    """An engine that has loaded a target, and perhaps a draft; also a context manager."""

    @property
    def url(self) -> str | None:
        """Root of its HTTP server, without a path; None where it has none."""

    @property
    def log(self) -> Path | None:
        """What it has written while it ran."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Answer]:
        """Answers in the prompts' order, `Settings.slots` of them at once.

        Raises:
            EngineFailed: the engine died, hung or refused; with the last lines of its log.
        """

    def metrics(self) -> Drafted:
        """Drafted and accepted since the start, as the engine itself counts them."""

    def stop(self) -> None:
        """End it and every process it started; a second call does nothing."""

    def __enter__(self) -> Running: ...

    def __exit__(self, *_: object) -> None: ...


class Engine(Protocol):
    """One file of this directory each."""

    name: str

    def missing(self) -> str | None:
        """What to do where the engine is not installed; None where it is."""

    def version(self) -> str:
        """Of the engine that is installed."""

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> Running:
        """Load both and wait until it answers.

        Args:
            draft: None serves the target alone, whatever `settings.draft_tokens` says.
            work: a directory of its own: converted files and the log.

        Raises:
            BadInput: not installed, a port that is taken, a target or draft that it does not load.
            EngineFailed: it died or hung while it loaded; with the last lines of its log.
        """
