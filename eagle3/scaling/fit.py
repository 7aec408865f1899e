"""The curve: acceptance length as a line in the logarithm of the training tokens.

    tau = a + b log2(tokens),    so b is what twice the data adds

by least squares, each training counting the same. The paper shows its acceptance length rising like
this over 1 to 8 times its data (EAGLE-3, figure 1); a line cannot go on for ever, since a round
emits at most depth + 1 tokens: it is read one doubling beyond the data, and no higher than that.

The interval holds two sources of chance, added as independent:
    answers     another held-out set would judge otherwise: the answers are drawn again with
                replacement, the same ones for every training, and the line is fitted again
    trainings   another seed would train otherwise, and a line is not the truth: Student's t with
                n - 2 degrees of freedom times the residuals' spread, for a new training there
With two trainings there are no residuals, and the interval is too narrow: the first source alone.

Shapes: N trainings, A held-out answers, B draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 4000
LEVEL = 0.95


@dataclass(frozen=True)
class Value:
    """A number and its interval at `LEVEL`."""

    at: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """The fitted line, and what it says."""

    intercept: float
    slope: float
    """b: what twice the data adds."""
    residual: float | None
    """Spread of the trainings about the line; None for two of them."""
    taus: list[Value]
    """The acceptance length of each training, its interval that of the answers alone."""
    doubling: Value
    """What twice the data adds: b."""
    twice: Value
    """The acceptance length to expect from a training on twice the data of the largest."""

    def at(self, tokens: float) -> float:
        return self.intercept + self.slope * math.log2(tokens)

    def record(self) -> dict[str, Any]:
        """The curve as JSON holds it."""

        def plain(value: Value) -> dict[str, float]:
            return {name: round(x, 4) for name, x in vars(value).items()}

        return {
            "model": "tau = intercept + slope * log2(tokens)",
            "intercept": self.intercept,
            "slope": self.slope,
            "residual": self.residual,
            "level": LEVEL,
            "interval_of": ["answers"] if self.residual is None else ["answers", "trainings"],
            "doubling": plain(self.doubling),
            "twice": plain(self.twice),
        }


def fit(tokens: list[int], emitted: Floats, rounds: Floats, most: float, seed: int = 0) -> Curve:
    """Fit the curve.

    Args:
        tokens: training tokens of each training, different ones.
        emitted: tokens emitted along each held-out answer, [N, A].
        rounds: rounds it took, [N, A]; at least one round for each training.
        most: tokens that a round can emit; the least is 1.
        seed: of the draws.

    Raises:
        ValueError: fewer than two trainings, or two of the same size.
    """
    if len(set(tokens)) < max(2, len(tokens)):
        raise ValueError(f"a curve needs trainings of different sizes, not {tokens}")
    x_N = np.log2(np.array(tokens, dtype=np.float64))
    tau_N = emitted.sum(1) / rounds.sum(1)
    line = _Line.through(x_N, tau_N)
    source = np.random.default_rng(seed)
    tau_BN = _drawn(emitted, rounds, source)
    lines = _Line.through(x_N, tau_BN)
    residual, noise_B = _residual(tau_N - line.at(x_N)), np.zeros(DRAWS)
    if residual is not None:
        noise_B = residual * source.standard_t(len(tokens) - 2, DRAWS)
    centre, width = x_N.mean(), float(((x_N - x_N.mean()) ** 2).sum())
    new = float(x_N.max() + 1)
    spread = math.sqrt(1 + 1 / len(tokens) + (new - centre) ** 2 / width)
    return Curve(
        float(line.intercept),
        float(line.slope),
        residual,
        [_value(tau, tau_B) for tau, tau_B in zip(tau_N, tau_BN.T, strict=True)],
        _value(line.slope, lines.slope + noise_B / math.sqrt(width)),
        _value(line.at(new), lines.at(new) + noise_B * spread, (1.0, most)),
    )


@dataclass(frozen=True)
class _Line:
    """One line or many; the fields are numbers or [B]."""

    intercept: Any
    slope: Any

    @classmethod
    def through(cls, x_N: Floats, y: Floats) -> _Line:
        """Least squares through y: [N], or [B, N]."""
        centred = x_N - x_N.mean()
        slope = (y * centred).sum(-1) / (centred**2).sum()
        return cls(y.mean(-1) - slope * x_N.mean(), slope)

    def at(self, x: Any) -> Any:
        return self.intercept + self.slope * x


def _drawn(emitted: Floats, rounds: Floats, source: np.random.Generator) -> Floats:
    """Acceptance lengths over answers drawn again, [B, N]; an answer is the same for all N."""
    answers = emitted.shape[1]
    times_BA = source.multinomial(answers, [1 / answers] * answers, DRAWS).astype(np.float64)
    return (times_BA @ emitted.T) / np.maximum(times_BA @ rounds.T, 1)


def _residual(off_N: Floats) -> float | None:
    if len(off_N) == 2:
        return None
    return math.sqrt(float((off_N**2).sum()) / (len(off_N) - 2))


def _value(at: float, draws_B: Floats, within: tuple[float, float] | None = None) -> Value:
    three = np.array([at, *np.quantile(draws_B, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])])
    if within is not None:
        three = three.clip(*within)
    return Value(*three.tolist())
