"""Greedy output with the draft equals the target's own, token for token.

Kernels may round differently for different numbers of rows. So where the two outputs first differ,
the logits there are looked at: a difference passes, as a *near tie*, only if both tokens lie as
near the largest logit as rounding reaches (`tolerance.py`). Near ties are listed with their margin,
and the reference goes on from our token. Anything else is a mismatch, and the draft is not
lossless. In float32 near ties may come at most once in 1,000 tokens; in half precision they are
what the type does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from eagle3.bench.prompts import HeldOut
from eagle3.data.records import Record
from eagle3.decode.engine import Engine
from eagle3.decode.request import Request
from eagle3.errors import BadInput
from eagle3.proof.reference import Reference

TOKENS_PER_TIE = 1000
"""In float32."""

Verdict = Literal["lossless", "not_lossless"]


class Difference(Record):
    """A place where the two outputs differ, and how close the two tokens' logits are there."""

    position: int
    """Index into the new tokens."""
    with_draft: int | None
    """Token id; empty where this output had already ended."""
    reference: int | None
    margin: float | None
    """Largest logit less the smaller of the two tokens' own; empty without two tokens."""
    allowed: float | None
    """The largest margin that rounding explains."""

    @property
    def is_tie(self) -> bool:
        return self.margin is not None and self.allowed is not None and self.margin <= self.allowed


class PromptProof(Record):
    """The comparison of one prompt."""

    id: str
    prompt_sha256: str
    prompt_tokens: int
    new_tokens: int
    rounds: int
    """Target forwards that decoding with the draft took after the prefill."""
    verdict: Literal["equal", "near_tie", "mismatch"]
    near_ties: list[Difference]
    mismatch: Difference | None


def refuse_lossy(engine: Engine) -> None:
    """Only a method that is verified exactly can be proved.

    Raises:
        BadInput: this one is not.
    """
    if not engine.drafter.lossless:
        raise BadInput(
            f"{engine.drafter.name} is lossy: its guesses are not verified exactly, so that what "
            "is sampled with it is not the target's",
            "prove a method with exact acceptance",
        )


def prove_prompt(
    engine: Engine, reference: Reference, prompt: HeldOut, max_new_tokens: int
) -> PromptProof:
    """Decode one prompt with the draft and compare it with the reference, near ties passed over."""
    refuse_lossy(engine)
    eos_ids = engine.target.eos_ids()
    [ours] = engine.generate([Request(prompt.ids, max_new_tokens, stop_ids=eos_ids)])
    return compare(reference, prompt, ours.tokens, eos_ids, max_new_tokens, ours.rounds)


def compare(
    reference: Reference,
    prompt: HeldOut,
    tokens: list[int],
    eos_ids: frozenset[int],
    max_new_tokens: int,
    rounds: int = 0,
) -> PromptProof:
    """Compare what an engine wrote with the reference, which goes on from a near tie as it did."""
    ties: list[Difference] = []
    mismatch: Difference | None = None
    same = 0
    while same < max_new_tokens and (not same or tokens[same - 1] not in eos_ids):
        prefix = [*prompt.ids, *tokens[:same]]
        theirs = [*tokens[:same], *reference.greedy(prefix, max_new_tokens - same)]
        found = _first_difference(tokens, theirs, reference, prompt.ids)
        if found is None:
            break
        if not found.is_tie:
            mismatch = found
            break
        ties.append(found)
        same = found.position + 1
    return PromptProof(
        id=prompt.id,
        prompt_sha256=prompt.sha256,
        prompt_tokens=len(prompt.ids),
        new_tokens=len(tokens),
        rounds=rounds,
        verdict="mismatch" if mismatch else "near_tie" if ties else "equal",
        near_ties=ties,
        mismatch=mismatch,
    )


def _first_difference(
    ours: list[int], theirs: list[int], reference: Reference, prompt_ids: list[int]
) -> Difference | None:
    if ours == theirs:
        return None
    shorter = min(len(ours), len(theirs))
    at = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    ours_at = ours[at] if at < len(ours) else None
    theirs_at = theirs[at] if at < len(theirs) else None
    margin = allowed = None
    if ours_at is not None and theirs_at is not None:
        margin, allowed = reference.margin([*prompt_ids, *ours[:at]], (ours_at, theirs_at))
    return Difference(
        position=at, with_draft=ours_at, reference=theirs_at, margin=margin, allowed=allowed
    )


def verdict(proofs: Sequence[PromptProof], dtype: torch.dtype = torch.float32) -> Verdict:
    """Lossless: no mismatch, and in float32 at most one near tie in each started 1,000 tokens."""
    if any(p.mismatch for p in proofs):
        return "not_lossless"
    tokens = sum(p.new_tokens for p in proofs)
    ties = sum(len(p.near_ties) for p in proofs)
    rationed = dtype == torch.float32 and ties > -(-tokens // TOKENS_PER_TIE)
    return "not_lossless" if rationed else "lossless"
