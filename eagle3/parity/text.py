"""Greedy text of an engine against the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.bench.prompts import HeldOut
from eagle3.engines.engine import Answer
from eagle3.proof.greedy import Difference, PromptProof, compare, verdict
from eagle3.proof.reference import Reference


@dataclass(frozen=True)
class Text:
    """How many prompts were answered alike."""

    prompts: int
    tokens: int
    equal: int
    near_ties: list[Difference]
    mismatches: list[Difference]
    identical: bool
    """By the rule of the proof: no mismatch, and near ties no more often than it allows."""


def compare_text(
    reference: Reference,
    prompts: Sequence[HeldOut],
    answers: Sequence[Answer],
    eos_ids: frozenset[int],
    max_new_tokens: int,
) -> Text:
    """Compare token for token, as the proof does (`eagle3.proof.greedy`)."""
    proofs = [
        compare(
            reference,
            prompt,
            _ended(reference, prompt, list(answer.tokens), eos_ids, max_new_tokens),
            eos_ids,
            max_new_tokens,
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return Text(
        len(proofs),
        sum(p.new_tokens for p in proofs),
        sum(p.verdict == "equal" for p in proofs),
        [tie for p in proofs for tie in p.near_ties],
        [p.mismatch for p in proofs if p.mismatch is not None],
        _identical(proofs, reference),
    )


def _identical(proofs: Sequence[PromptProof], reference: Reference) -> bool:
    return verdict(proofs, reference.dtype) == "lossless"


def _ended(
    reference: Reference,
    prompt: HeldOut,
    tokens: list[int],
    eos_ids: frozenset[int],
    max_new_tokens: int,
) -> list[int]:
    """The tokens with the end of the answer, which some engines leave out."""
    if len(tokens) < max_new_tokens and eos_ids.isdisjoint(tokens[-1:]):
        theirs = reference.greedy(prompt.ids, max_new_tokens)
        if theirs[:-1] == tokens and theirs[-1] in eos_ids:
            return theirs
    return tokens
