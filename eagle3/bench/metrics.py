"""The one definition of each figure of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class Counts:
    """What one method did on one prompt, or on many together; only the decode phase counts."""

    tokens: int = 0
    """Tokens emitted after the prefill's own first one."""
    rounds: int = 0
    """Target forwards."""
    seconds: float = 0.0
    target_s: float = 0.0
    draft_s: float = 0.0
    reached: list[int] = field(default_factory=list)
    """Rounds in which position n was drafted and all earlier positions were accepted."""
    accepted: list[int] = field(default_factory=list)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            self.seconds + other.seconds,
            self.target_s + other.target_s,
            self.draft_s + other.draft_s,
            _sums(self.reached, other.reached),
            _sums(self.accepted, other.accepted),
        )

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tau(self) -> float:
        """Average acceptance length: emitted tokens per target forward."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Rate at which the (n + 1)-th drafted token is accepted, given all earlier ones were."""
        return [a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True)]


@dataclass(frozen=True)
class Pair:
    """Both methods on the same prompt; repeats are added up."""

    plain: Counts
    draft: Counts


def total(pairs: Sequence[Pair]) -> Pair:
    plain, draft = Counts(), Counts()
    for pair in pairs:
        plain, draft = plain + pair.plain, draft + pair.draft
    return Pair(plain, draft)


def speedup(pairs: Sequence[Pair]) -> float:
    """Ratio of tokens per second over all prompts, draft to plain."""
    both = total(pairs)
    return both.draft.tokens_per_s / both.plain.tokens_per_s if both.plain.tokens_per_s else 0.0


def tau(pairs: Sequence[Pair]) -> float:
    return total(pairs).draft.tau


def interval(
    pairs: Sequence[Pair],
    statistic: Callable[[Sequence[Pair]], float],
    seed: int,
    resamples: int = 2000,
) -> tuple[float, float]:
    """95% percentile bootstrap over prompts; a drawn prompt brings both methods (paired)."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(pairs), (resamples, len(pairs)), generator=generator).tolist()
    values = torch.tensor([statistic([pairs[i] for i in draw]) for draw in draws])
    low, high = values.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def predicted_speedup(tau: float, one_row: float, verify: float, draft: float) -> float:
    """tau * c(1) / (c(verify) + draft): times of a target forward of one row, of one that verifies
    a tree, and of all draft work of a round."""
    return tau * one_row / (verify + draft)


def verdict(speedup_ci: tuple[float, float], tau: float) -> tuple[str, str]:
    """`faster`, `slower`, `undecided` or `measurement_error`, and why, in a sentence.

    A round costs at least one target forward, so no honest speedup lies above tau: one that does
    says that the plain loop was measured badly.
    """
    low, high = speedup_ci
    if low > tau:
        return "measurement_error", (
            f"the speedup's lower bound {low:.2f} lies above tau {tau:.2f}, which cannot be: the "
            "plain loop was slowed by something else; run again on a quiet machine"
        )
    if low > 1:
        return "faster", f"the whole interval {low:.2f} to {high:.2f} lies above 1"
    if high < 1:
        return "slower", f"the whole interval {low:.2f} to {high:.2f} lies below 1"
    return "undecided", f"the interval {low:.2f} to {high:.2f} holds 1"


def _sums(a: list[int], b: list[int]) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [x + (shorter[i] if i < len(shorter) else 0) for i, x in enumerate(longer)]
