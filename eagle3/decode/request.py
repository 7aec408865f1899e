"""What is asked of the engine, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3.decode.sampling import Sampling
from eagle3.decode.stopping import Finish, Stop
from eagle3.errors import BadInput

SEEDS = 2**64
"""Of a generator of torch."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how it is to be answered.

    Raises:
        BadInput: an empty prompt, no room for a token, an empty stop string, or a seed that is
            none.
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
        if not 0 <= self.seed < SEEDS:
            raise BadInput(f"seed {self.seed}: expected 0 to 2**64 - 1")
        Stop(self.max_new_tokens, self.stop_ids, self.stop_strings)  # refuses what ends nothing

    def check(self, context: int, vocab_size: int, tokenizer: Any) -> None:
        """Whether a target can answer it.

        Args:
            context: tokens of prompt and answer together, at most.

        Raises:
            BadInput: the prompt leaves no room for an answer, an id that the vocabulary does not
                have, or stop strings without a tokenizer.
        """
        if len(self.prompt_ids) >= context:
            raise BadInput(
                f"the prompt has {len(self.prompt_ids)} tokens; prompt and answer together may "
                f"have {context}: shorten the prompt"
            )
        for name, ids in (("prompt", self.prompt_ids), ("logit_bias", self.sampling.logit_bias)):
            wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
            if wrong is not None:
                raise BadInput(
                    f"{name} of token {wrong}: expected an id from 0 to {vocab_size - 1}, of the "
                    "target's vocabulary"
                )
        if self.stop_strings and tokenizer is None:
            raise BadInput("stop strings need the target's tokenizer: give the engine one")


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
    drafted: int = 0
    """Guesses that they read along, accepted or not."""
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
    """Tokens of one request that stand: they come once and are never taken back. Or its refusal."""

    request: int
    """Its number, in the order of the requests."""
    tokens: list[int]
    text: str
    """Text that became sure, which may lag behind the tokens."""
    done: Generation | None = None
    """The whole answer, once it has ended."""
    refused: BadInput | None = None
    """Why this target cannot answer it; nothing else of it comes."""
