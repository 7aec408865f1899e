"""What is asked of the engine, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle3.decode.sampling import Sampling
from eagle3.decode.stopping import Finish
from eagle3.errors import BadInput


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how it is to be answered.

    Raises:
        BadInput: an empty prompt, or no room for a token.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    """At most so many; the target's context, prompt and answer together, may allow fewer."""
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end an answer, such as the target's `eos_ids()`."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end an answer; they need an engine with a tokenizer."""
    seed: int = 0
    """Decides the sampled tokens, whatever else is decoded beside."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise BadInput("the prompt is empty: expected one token or more")
        if self.max_new_tokens < 1:
            raise BadInput(f"max_new_tokens {self.max_new_tokens}: expected 1 or more")


@dataclass
class Timings:
    """Where an answer's decoding time went, in seconds of the rounds that it took part in."""

    target: float = 0.0
    """Target forwards, with the head and its largest logits."""
    draft: float = 0.0
    """Guessing, and what the method does with what was seen."""
    prefill: float = 0.0
    """Reading in other prompts meanwhile."""
    other: float = 0.0


@dataclass
class Generation:
    """One decoded prompt. The first token comes from the prefill; all counts are of the rest."""

    tokens: list[int] = field(default_factory=list)
    """New tokens, one that ended the answer included."""
    text: str = ""
    """Their text without what ended the answer; empty without a tokenizer."""
    finish: Finish = "length"
    rounds: int = 0
    """Target forwards of the decode phase."""
    reached: list[int] = field(default_factory=list)
    """Rounds in which a token was drafted at depth n + 1 and all before it were accepted."""
    accepted: list[int] = field(default_factory=list)
    """Of these, the rounds in which a token at depth n + 1 was accepted and emitted."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    timings: Timings = field(default_factory=Timings)
    started_s: float = 0.0
    """When the request was taken up, in seconds since decoding of all requests began."""
    stamps: list[float] = field(default_factory=list)
    """When each token was emitted, in seconds since the request was taken up; the tokens of one
    round share a stamp."""

    @property
    def decoded(self) -> int:
        """Tokens of the decode phase."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Emission:
    """Tokens of one request that stand: they come once and are never taken back."""

    request: int
    """Its number, in the order of the requests."""
    tokens: list[int]
    text: str
    """Text that became sure, which may lag behind the tokens."""
    done: Generation | None = None
    """The whole answer, once it has ended."""
