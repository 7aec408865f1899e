"""Sampled text with the draft has the target's own distribution, by counting.

A few held-out prompts (the shortest, since each text reads its prompt anew) are continued many
times at temperature 1: by this engine with the draft, and by stock transformers without it. What is
compared (`twosample.py`): the token at each position, and how far a text follows the target's
greedy continuation before it first departs from it, which depends on all tokens together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eagle3.bench.prompts import HeldOut
from eagle3.config.sections import SAMPLED_PROMPTS, SAMPLED_TOKENS
from eagle3.data.records import Record
from eagle3.decode.engine import Engine
from eagle3.decode.request import Request
from eagle3.decode.sampling import Sampling
from eagle3.proof.greedy import refuse_lossy
from eagle3.proof.reference import Reference
from eagle3.proof.twosample import ALPHA, DRAWS, Hypothesis, compare

ENDED = -1
"""Stands for a token where a text has already ended."""

SLOTS = 16
"""Texts that the engine decodes together."""


class Samples(Record):
    """The continuations of one prompt, as token ids."""

    id: str
    prompt_sha256: str
    with_draft: list[list[int]]
    reference: list[list[int]]
    greedy: list[int]


def shortest(prompts: Sequence[HeldOut]) -> list[HeldOut]:
    """The prompts that are continued."""
    return sorted(prompts, key=lambda prompt: (len(prompt.ids), prompt.id))[:SAMPLED_PROMPTS]


def draw(engine: Engine, reference: Reference, prompt: HeldOut, count: int, seed: int) -> Samples:
    """Continue a prompt so many times on either side; random numbers depend on the prompt too."""
    refuse_lossy(engine)
    first = seed + int(prompt.sha256[:12], 16)
    stop_ids = engine.target.eos_ids()
    requests = [
        Request(prompt.ids, SAMPLED_TOKENS, Sampling(1.0), stop_ids=stop_ids, seed=first + n)
        for n in range(count)
    ]
    return Samples(
        id=prompt.id,
        prompt_sha256=prompt.sha256,
        with_draft=[out.tokens for out in engine.generate(requests)],
        reference=reference.sample(prompt.ids, SAMPLED_TOKENS, count, first),
        greedy=reference.greedy(prompt.ids, SAMPLED_TOKENS),
    )


def judge(found: Sequence[Samples], seed: int) -> list[Hypothesis]:
    """Compare the two sides at each position, and where they first depart from greedy."""
    length = max(len(text) for s in found for text in [*s.with_draft, *s.reference])

    def both(s: Samples, value: Callable[[Samples, list[int]], int]) -> tuple[list[int], list[int]]:
        return [value(s, text) for text in s.with_draft], [value(s, text) for text in s.reference]

    features: dict[str, list[tuple[list[int], list[int]]]] = {
        f"token {at + 1}": [both(s, _token_at(at)) for s in found] for at in range(length)
    }
    features["departs from greedy"] = [both(s, _departs) for s in found]
    return compare(dict(features), seed)


def _token_at(at: int) -> Callable[[Samples, list[int]], int]:
    return lambda _, text: text[at] if at < len(text) else ENDED


def _departs(samples: Samples, text: list[int]) -> int:
    """Tokens that agree with the greedy continuation before the first that does not."""
    pairs = enumerate(zip(text, samples.greedy, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(text), len(samples.greedy)))


def section(found: Sequence[Samples], seed: int) -> dict[str, Any]:
    """What the certificate says about sampled text."""
    tests = judge(found, seed)
    caught = {
        f"caught_{chance}": _worst([getattr(test, f"caught_{chance}") for test in tests])
        for chance in (80, 95)
    }
    return {
        "verdict": "lossless" if min(t.p_corrected for t in tests) > ALPHA else "not_lossless",
        "prompts": len(found),
        "prompts_sha256": [s.prompt_sha256 for s in found],
        "texts_of_each_side": sum(len(s.with_draft) for s in found),
        "tokens_with_draft": sum(len(text) for s in found for text in s.with_draft),
        "temperature": 1,
        "rule": {
            "reference": "transformers generate, sampling, freshly loaded, its own attention",
            "test": "chi-square of two samples, by permutation, Holm's correction",
            "permutations": DRAWS,
            "alpha": ALPHA,
        },
        "least_p_corrected": min(t.p_corrected for t in tests),
        **caught,
        "tests": [test.model_dump(mode="json") for test in tests],
    }


def _worst(found: list[float | None]) -> float | None:
    """The largest; None where one is beyond what was tried."""
    known = [value for value in found if value is not None]
    return max(known) if len(known) == len(found) else None
