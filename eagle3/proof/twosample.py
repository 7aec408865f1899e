"""Were two sets of texts drawn from one distribution? A permutation test, and what it would find.

For each prompt both sides give as many texts. A text has several features, such as its token at a
position; each feature is one hypothesis, tested over all prompts together:

- The statistic is chi-square of two samples, sum of (a - b)^2 / (a + b) over values and prompts, of
  the counts a and b of a value on the two sides. Values that come fewer than 5 times on both sides
  together are counted as one.
- The null distribution is that of shuffling which text is on which side. It is drawn exactly: given
  how often a value comes in all, one side's counts are multivariate hypergeometric.
- Holm's correction makes the p-values of all features hold together.

Power is found by simulation, for the kind of bias that faulty acceptance has: at one position of
every text, some probability moves between the likeliest token and all others. A bias is *caught*
where the statistic lies beyond that of all unbiased pairs but a share of `ALPHA` / hypotheses
(Bonferroni, which Holm is never worse than).

Shapes: K values of one feature for one prompt, D draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eagle3.data.records import Record

ALPHA = 0.001
"""Chance of a false alarm, over all hypotheses of one proof."""

DRAWS = 20_000
"""Shuffles for a p-value; the smallest there is, 1 / 20,001, is below 0.001 / 20 hypotheses."""

RARE = 5
POWER_DRAWS = 2_000
STEPS = tuple(round(0.01 * step, 2) for step in range(1, 61))
"""Total variations that are tried for the power."""

Counts = NDArray[np.int64]


class Hypothesis(Record):
    """One feature: are its values spread alike on both sides?"""

    feature: str
    total_variation: float
    """Of the two sides' frequencies, mean over prompts; above 0 by chance alone."""
    p: float
    p_corrected: float
    """Holm's."""
    caught_80: float | None
    """Total variation of a bias that is caught with a probability of 80%; empty: above 0.6."""
    caught_95: float | None


def compare(
    features: dict[str, Sequence[tuple[Sequence[int], Sequence[int]]]], seed: int
) -> list[Hypothesis]:
    """Test each feature.

    Args:
        features: by name, for each prompt the values on the two sides, as many on each.
    """
    rng = np.random.default_rng(seed)
    tables = {name: [count(a, b) for a, b in pairs] for name, pairs in features.items()}
    p_values = {name: p_value(found, rng) for name, found in tables.items()}
    corrected = holm(p_values)
    level = ALPHA / len(tables)
    found = []
    for name, of_prompts in tables.items():
        caught = power(of_prompts, level, rng)
        found.append(
            Hypothesis(
                feature=name,
                total_variation=float(np.mean([_variation(t) for t in of_prompts])),
                p=p_values[name],
                p_corrected=corrected[name],
                caught_80=_least(caught, 0.8),
                caught_95=_least(caught, 0.95),
            )
        )
    return found


def count(a: Sequence[int], b: Sequence[int]) -> Counts:
    """How often each value comes on either side, [2, K]; rare values are one."""
    in_all, left, right = Counter(a) + Counter(b), Counter(a), Counter(b)
    common = sorted(value for value, times in in_all.items() if times >= RARE)
    kept = [[left[value], right[value]] for value in common]
    rest = [len(a) - sum(x for x, _ in kept), len(b) - sum(y for _, y in kept)]
    return np.array([*kept, rest] if any(rest) else kept, dtype=np.int64).T


def statistic(a: Counts, b: Counts) -> NDArray[np.float64]:
    """Chi-square of two samples over the last axis."""
    square = (a - b).astype(np.float64) ** 2
    chi: NDArray[np.float64] = (square / np.maximum(a + b, 1)).sum(-1)
    return chi


def p_value(tables: Sequence[Counts], rng: np.random.Generator) -> float:
    """The chance that shuffled sides differ as much as these."""
    seen = sum(float(statistic(t[0], t[1])) for t in tables)
    null_D = np.zeros(DRAWS)
    for table in tables:
        pooled, size = table.sum(0), int(table[0].sum())
        drawn_DK = rng.multivariate_hypergeometric(pooled, size, size=DRAWS, method="marginals")
        null_D += statistic(drawn_DK, pooled - drawn_DK)
    return float((1 + (null_D >= seen * (1 - 1e-12)).sum()) / (1 + DRAWS))


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """p-values that hold together."""
    corrected, least = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(p_values) - rank) * p))
        corrected[name] = least
    return corrected


def power(
    tables: Sequence[Counts], level: float, rng: np.random.Generator
) -> list[tuple[float, float]]:
    """(total variation of a bias, chance that it is caught), up to a chance of 95%."""
    shares = [t.sum(0) / t.sum() for t in tables]
    sizes = [int(t[0].sum()) for t in tables]
    null_D = _simulated(shares, shares, sizes, DRAWS, rng)
    limit = float(np.sort(null_D)[-max(1, int(level * DRAWS))])
    found = []
    for variation in STEPS:
        biased = [_biased(p_K, variation) for p_K in shares]
        drawn_D = _simulated(biased, shares, sizes, POWER_DRAWS, rng)
        found.append((variation, float((drawn_D > limit).mean())))
        if found[-1][1] >= 0.95:
            break
    return found


def _simulated(
    ours: Sequence[NDArray[np.float64]],
    theirs: Sequence[NDArray[np.float64]],
    sizes: Sequence[int],
    draws: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    total_D = np.zeros(draws)
    for p_K, q_K, size in zip(ours, theirs, sizes, strict=True):
        q_K = np.pad(q_K, (0, len(p_K) - len(q_K)))
        a, b = rng.multinomial(size, p_K, size=draws), rng.multinomial(size, q_K, size=draws)
        total_D += statistic(a, b)
    return total_D


def _biased(p_K: NDArray[np.float64], variation: float) -> NDArray[np.float64]:
    """So much probability moved from the likeliest value to the others, or to it where it has less
    than half; a last value is new where there are no others."""
    top = int(p_K.argmax())
    moved = np.append(p_K, 0.0)
    if p_K[top] < 0.5:
        share = variation / (1 - p_K[top])
        moved *= 1 - min(share, 1.0)
        moved[top] += 1 - moved.sum()
    else:
        others = np.append(p_K, 0.0)
        others[top] = 0
        if others.sum() == 0:
            others[-1] = 1
        part = min(variation, p_K[top])
        moved[top] -= part
        moved += part * others / others.sum()
    return moved / moved.sum()


def _variation(table: Counts) -> float:
    a, b = table / table.sum(1, keepdims=True)
    return float(np.abs(a - b).sum() / 2)


def _least(caught: list[tuple[float, float]], wanted: float) -> float | None:
    return next((variation for variation, chance in caught if chance >= wanted), None)
