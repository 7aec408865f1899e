"""The one definition of each figure of a benchmark; `docs/metrics.md` puts them in a table.

Shapes: P prompts, S resamples, 6 sums of a pair (`_SUMS`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

RESAMPLES = 2000


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
        return acceptance_length(self.tokens, self.rounds)

    @property
    def acceptance_by_position(self) -> list[float]:
        return acceptance_rates(self.accepted, self.reached)


def acceptance_length(tokens: int, rounds: int) -> float:
    """tau: emitted tokens per target forward."""
    return tokens / rounds if rounds else 0.0


def acceptance_rates(accepted: Sequence[int], reached: Sequence[int]) -> list[float]:
    """Rate at which the (n + 1)-th drafted token is accepted, given all earlier ones were; of a
    chain this is the papers' n-alpha."""
    return [a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)]


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


_SUMS = ("plain tokens", "plain seconds", "tokens", "seconds", "rounds", "plain rounds")


@dataclass(frozen=True)
class Statistic:
    """A figure that is a function of sums over prompts, so that it can be resampled at once."""

    of_sums: Callable[[Tensor], Tensor]
    """From sums [..., 6] to the figure [...]; not a number where nothing was decoded."""

    def __call__(self, pairs: Sequence[Pair]) -> float:
        """The figure over all prompts; 0 where nothing was decoded."""
        return float(self.of_sums(_table(pairs).sum(0)).nan_to_num(0.0))


speedup = Statistic(lambda x: (x[..., 2] / x[..., 3]) / (x[..., 0] / x[..., 1]))
"""Ratio of tokens per second over all prompts, draft to plain."""

tau = Statistic(lambda x: x[..., 2] / x[..., 4])
"""Average acceptance length over all prompts."""

tau_gain = Statistic(lambda x: x[..., 2] / x[..., 4] - x[..., 0] / x[..., 5])
"""How much longer than the other method's it is, where that one drafts too."""


def interval(pairs: Sequence[Pair], statistic: Statistic, seed: int) -> tuple[float, float]:
    """95% percentile bootstrap over prompts; a drawn prompt brings both methods (paired)."""
    return mean_interval([pairs], statistic, seed)


def mean(tasks: Sequence[Sequence[Pair]], statistic: Statistic) -> float:
    """The papers' mean: every task weighs the same, whatever its number of tokens."""
    return sum(statistic(pairs) for pairs in tasks) / len(tasks)


def mean_interval(
    tasks: Sequence[Sequence[Pair]], statistic: Statistic, seed: int
) -> tuple[float, float]:
    """95% percentile bootstrap of the mean over tasks; prompts are drawn within each task.

    Draws in which some task decoded nothing say nothing, and are left out.
    """
    generator = torch.Generator().manual_seed(seed)
    values_S = torch.zeros(RESAMPLES, dtype=torch.float64)
    for pairs in tasks:
        drawn_SP = torch.randint(len(pairs), (RESAMPLES, len(pairs)), generator=generator)
        values_S += statistic.of_sums(_table(pairs)[drawn_SP].sum(1)) / len(tasks)
    bounds = values_S.nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    low, high = bounds.nan_to_num(0.0).tolist()
    return low, high


def predicted_speedup(tau: float, one_row: float, verify: float, draft: float) -> float:
    """tau * c(1) / (c(verify) + draft): times of a target forward of one row, of one that verifies
    a tree, and of all draft work of a round."""
    return tau * one_row / (verify + draft)


def agrees(predicted: float, measured: float, interval: tuple[float, float]) -> bool:
    """Whether a cost model holds: within 15% of what was measured, or half its interval."""
    low, high = interval
    return abs(predicted - measured) <= max(0.15 * measured, (high - low) / 2)


def verdict(speedup_ci: tuple[float, float], tau: float) -> tuple[str, str]:
    """`faster`, `slower`, `undecided`, `measurement_error` or `no_tokens`, and why, in a sentence.

    A round costs at least one target forward, so no honest speedup lies above tau: one that does
    says that the plain loop was measured badly.
    """
    low, high = speedup_ci
    if tau == 0:
        return "no_tokens", (
            "no tokens to measure: every answer ended with the prefill's own token; ask for "
            "longer answers, or for other prompts"
        )
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


@dataclass(frozen=True)
class Latency:
    """What a reader of the answers waits for, in seconds."""

    first_s: float
    """Time to first token: from the request to its first token, mean over answers."""
    token_s: float
    """Inter-token latency: from an answer's first token to its last, for each token after the
    first; over all answers."""
    wait_p50_s: float
    """Median wait for the next tokens: a round emits all of its tokens at once."""
    wait_p95_s: float


def latency(stamps: Sequence[Sequence[float]]) -> Latency:
    """The latencies of answers.

    Args:
        stamps: for each answer, when each of its tokens was emitted: seconds since the request.
    """
    if not stamps or not all(stamps):
        raise ValueError("latency needs answers of one token or more")
    later = sum(len(answer) - 1 for answer in stamps)
    spent = sum(answer[-1] - answer[0] for answer in stamps)
    waits = [b - a for answer in stamps for a, b in pairwise(answer) if b > a]
    quantiles = torch.tensor([0.5, 0.95], dtype=torch.float64)
    p50, p95 = torch.tensor(waits or [0.0], dtype=torch.float64).quantile(quantiles).tolist()
    return Latency(
        first_s=sum(answer[0] for answer in stamps) / len(stamps),
        token_s=spent / later if later else 0.0,
        wait_p50_s=p50,
        wait_p95_s=p95,
    )


@dataclass(frozen=True)
class Reply:
    """An answer of a server, as it arrived at the reader."""

    tokens: int
    first_s: float
    """From the request to its first tokens."""
    waits_s: tuple[float, ...]
    """From one arrival to the next; a round's tokens arrive at once."""

    @property
    def seconds(self) -> float:
        return self.first_s + sum(self.waits_s)

    @property
    def token_s(self) -> float | None:
        """Time per output token: the tokens after the first; None where there are none."""
        return sum(self.waits_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True)
class Spread:
    """A mean and the percentiles of one figure, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def spread(values: Sequence[float]) -> Spread:
    values_N = torch.tensor(values, dtype=torch.float64)
    levels = torch.tensor([0.5, 0.9, 0.95, 0.99], dtype=torch.float64)
    return Spread(float(values_N.mean()), *values_N.quantile(levels).tolist())


def median_range(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of repeated runs, and an interval that holds the true one, whatever the runs'
    distribution: between the n-th lowest and the n-th highest, as near as 93% allows.

    That is from lowest to highest of 5 to 7 runs. Of fewer it is that too, and holds it less often
    (75% of 3, 50% of 2); one run says nothing of how much another would differ.
    """
    ordered = sorted(values)
    inside = 0
    for nth in range(len(ordered) // 2):
        outside = 2 * sum(math.comb(len(ordered), i) for i in range(nth + 1)) / 2 ** len(ordered)
        if nth and outside > 0.07:
            break
        inside = nth
    return statistics.median(ordered), ordered[inside], ordered[-1 - inside]


def _table(pairs: Sequence[Pair]) -> Tensor:
    """Each pair's `_SUMS`, float64 [P, 6]."""
    rows = [
        (
            p.plain.tokens, p.plain.seconds, p.draft.tokens, p.draft.seconds, p.draft.rounds,
            p.plain.rounds,
        )
        for p in pairs
    ]  # fmt: skip
    return torch.tensor(rows, dtype=torch.float64)


def _sums(a: list[int], b: list[int]) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [x + (shorter[i] if i < len(shorter) else 0) for i, x in enumerate(longer)]
