"""What a round costs under load, fitted on a few points, and the throughput that follows.

A round verifies `rows` = sequences * (drafted + 1) tokens and drafts `drafted` times. Its time is a
sum of parts, none of them negative:

    fixed + a * drafted + b * sequences + c * rows + d * [drafted > 0] + e * max(0, rows - knee)

`fixed` is reading the weights, which is all of it as long as memory is what a round waits for;
beyond the knee it waits for arithmetic. The parts are those with the least squares of relative
error.

An answer of L tokens is its first token and (L - 1) / tau rounds. With n answers in progress
(Little's law):

    tokens/s = n * L / (first_s + (L - 1) * round_s / tau)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

KNEES = tuple(round(2 ** (n / 2)) for n in range(25))
"""Rows at which arithmetic may begin to tell, tried one by one."""
PARTS = ("fixed", "drafted", "sequences", "rows", "drafting", "beyond")


@dataclass(frozen=True)
class Point:
    """What one load and one draft length were measured to give."""

    sequences: int
    drafted: int
    tokens_per_s: float
    first_s: float
    """Time to first token; 0 where the engine does not stream."""
    tau: float

    def round_s(self, length: int) -> float:
        """Seconds a round, of answers of so many tokens."""
        answer_s = self.sequences * length / self.tokens_per_s
        return (answer_s - self.first_s) * self.tau / (length - 1)


@dataclass(frozen=True)
class Acceptance:
    """How often the first n drafted tokens are all accepted, for n = 1, 2, …"""

    at: tuple[float, ...]

    def tau(self, drafted: int) -> float:
        """Tokens a round. Beyond what was measured, each position holds as often as the last one
        did, given those before it."""
        known = list(self.at[:drafted])
        before = self.at[-2] if len(self.at) > 1 else 1.0
        ratio = self.at[-1] / before if self.at and before else 0.0
        while len(known) < drafted:
            known.append((known[-1] if known else 1.0) * ratio)
        return 1 + sum(known)


@dataclass(frozen=True)
class CostModel:
    """Seconds, by the parts named above."""

    parts: tuple[float, ...]
    knee: int
    first_parts: tuple[float, ...]
    """Of the time to first token: fixed, for each sequence, and where a draft is used."""
    length: int
    """Tokens an answer, as measured."""
    acceptance: Mapping[int, Acceptance]
    """By number of sequences. It should be one and the same, but an engine that mixes up what its
    sequences feed the draft accepts less when there are several (llama.cpp b11434 does)."""

    def tau(self, sequences: int, drafted: int) -> float:
        """Tokens a round; between two measured loads on a scale of powers of two."""
        loads = sorted(self.acceptance)
        taus = [self.acceptance[n].tau(drafted) for n in loads]
        return float(np.interp(np.log2(sequences), np.log2(loads), taus))

    def round_s(self, sequences: int, drafted: int) -> float:
        return float(_features([(sequences, drafted)], self.knee)[0] @ np.array(self.parts))

    def first_s(self, sequences: int, drafted: int) -> float:
        return float(_first_features([(sequences, drafted)])[0] @ np.array(self.first_parts))

    def tokens_per_s(self, sequences: int, drafted: int) -> float:
        rounds = (self.length - 1) / self.tau(sequences, drafted)
        rounds_s = rounds * self.round_s(sequences, drafted)
        return sequences * self.length / (self.first_s(sequences, drafted) + rounds_s)

    def relative(self, sequences: int, drafted: int) -> float:
        """Throughput over that of plain decoding under the same load."""
        return self.tokens_per_s(sequences, drafted) / self.tokens_per_s(sequences, 0)


def fit(points: Sequence[Point], length: int, acceptance: Mapping[int, Acceptance]) -> CostModel:
    """The model that is nearest to these points.

    Args:
        length: tokens of an answer.
        acceptance: by number of sequences.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("a cost model takes points")
    at = [(p.sequences, p.drafted) for p in points]
    rounds = np.array([p.round_s(length) for p in points])
    tried = []
    most = max(p.sequences * (p.drafted + 1) for p in points)
    for knee in [*(knee for knee in KNEES if knee < most), most]:  # the last one: there is none
        weights, error = _least_squares(_features(at, knee), rounds)
        tried.append((round(error, 9), -knee, weights))  # a later knee where two do as well
    _, knee, parts = min(tried)
    first = np.array([p.first_s for p in points])
    first_parts, _ = _least_squares(_first_features(at), first)
    return CostModel(parts, -knee, first_parts, length, acceptance)


def _features(at: Sequence[tuple[int, int]], knee: int) -> Floats:
    rows = [n * (k + 1) for n, k in at]
    return np.array(
        [[1.0, k, n, r, float(k > 0), max(0, r - knee)] for (n, k), r in zip(at, rows, strict=True)]
    )


def _first_features(at: Sequence[tuple[int, int]]) -> Floats:
    return np.array([[1.0, n, float(k > 0)] for n, k in at])


def _least_squares(features: Floats, values: Floats) -> tuple[tuple[float, ...], float]:
    """Weights that are not negative, and the sum of squared relative errors.

    Every set of weights that may differ from zero is tried: there are few, so this is exact.
    """
    columns = features.shape[1]
    if not values.all():  # nothing to divide by, and nothing to explain
        return (0.0,) * columns, 0.0
    scaled, ones = features / values[:, None], np.ones(len(values))
    best: tuple[float, tuple[float, ...]] = (np.inf, ())
    for size in range(1, columns + 1):
        for used in combinations(range(columns), size):
            found = np.linalg.lstsq(scaled[:, used], ones, rcond=None)[0]
            if (found < 0).any():
                continue
            error = float(((scaled[:, used] @ found - 1) ** 2).sum())
            if error < best[0] - 1e-12:  # fewer parts where more explain nothing
                weights = np.zeros(columns)
                weights[list(used)] = found
                best = error, tuple(map(float, weights))
    return best[1], best[0]
