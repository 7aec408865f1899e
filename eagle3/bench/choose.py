"""The tree that is fastest here: measured acceptance and measured times, for every shape.

What a round costs is measured (`cost`); it emits as many tokens as the shape's trees would have
along held-out answers (`simulate`). The shape with the most tokens per second is chosen; where none
beats plain decoding, that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.bench.cost import Costs
from eagle3.bench.metrics import predicted_speedup
from eagle3.bench.simulate import KnownAnswer, grow_along
from eagle3.config import BenchmarkConfig
from eagle3.decode.tree import Shape
from eagle3.draft import Draft
from eagle3.errors import BadInput
from eagle3.plan import drafted_nodes

TOP_KS = (1, 2, 4, 8)
TOTALS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 63)
"""Nodes that trees may keep; with the root at most 64 rows, as in the papers."""


@dataclass(frozen=True)
class Prediction:
    """What a shape would do."""

    shape: Shape
    tau: float
    round_s: float
    speedup: float

    @property
    def tokens_per_s(self) -> float:
        return self.tau / self.round_s

    def record(self) -> dict[str, Any]:
        return {
            "depth": self.shape.depth,
            "top_k": self.shape.top_k,
            "total_tokens": self.shape.kept,
            "tau": self.tau,
            "round_ms": 1e3 * self.round_s,
            "tokens_per_s": self.tokens_per_s,
            "speedup": self.speedup,
        }


@dataclass(frozen=True)
class Choice:
    """The best shape, and all that were considered, the fastest first."""

    predictions: Sequence[Prediction]
    answers: int

    @property
    def best(self) -> Prediction:
        return self.predictions[0]

    @property
    def plain_is_best(self) -> bool:
        return self.best.speedup <= 1

    def said(self) -> str:
        shape = self.best.shape
        kind = "a chain" if shape.top_k == 1 else f"a tree ({shape.top_k} children a node)"
        text = (
            f"{kind} of depth {shape.depth} with {shape.kept} nodes: tau {self.best.tau:.2f} along "
            f"{self.answers} held-out answers, a round of {1e3 * self.best.round_s:.1f} ms, so "
            f"{self.best.speedup:.2f}x"
        )
        return f"plain decoding is fastest here; at best {text}" if self.plain_is_best else text

    def record(self) -> dict[str, Any]:
        return {
            "chosen": self.best.record(),
            "plain_is_best": self.plain_is_best,
            "answers": self.answers,
            "considered": [prediction.record() for prediction in self.predictions],
        }


def shapes(
    depths: Iterable[int], top_ks: Iterable[int], totals: Iterable[int] | None = None
) -> list[Shape]:
    """Every shape of these that is one: a tree keeps at least a node a depth, and no more than it
    can have; a chain keeps all."""
    found = []
    for top_k in top_ks:
        for depth in depths:
            sizes = [depth] if top_k == 1 else TOTALS if totals is None else totals
            most = drafted_nodes(depth, top_k, 1 << 30)
            found += [Shape(depth, top_k, n) for n in sizes if depth <= n <= most]
    return found


def candidates(bench: BenchmarkConfig, deepest: int) -> list[Shape]:
    """The shapes that a benchmark's settings leave open.

    Raises:
        BadInput: none is a tree.
    """
    depths = range(1, deepest + 1) if bench.depth == "auto" else [bench.depth]
    top_ks = TOP_KS if bench.top_k == "auto" else [bench.top_k]
    total = bench.total_tokens
    if total is None:
        return [Shape(depth, top_k) for depth in depths for top_k in top_ks]
    found = shapes(depths, top_ks, None if total == "auto" else [total])
    if not found:
        raise BadInput(
            f"benchmark.total_tokens {total} fits no tree of depth {bench.depth} with "
            f"{bench.top_k} children a node",
            "choose it as well: benchmark.total_tokens: auto",
        )
    return found


def choose(
    draft: Draft, answers: Sequence[KnownAnswer], costs: Costs, candidates: Sequence[Shape]
) -> Choice:
    """The fastest of these shapes along these answers.

    Raises:
        ValueError: no candidates, or no answer of two tokens or more.
    """
    if not candidates or all(len(answer.ids) < answer.start + 2 for answer in answers):
        raise ValueError("choosing a shape takes candidates, and answers of two tokens or more")
    predictions = []
    for top_k in sorted({shape.top_k for shape in candidates}):
        alike = [shape for shape in candidates if shape.top_k == top_k]
        grown = grow_along(draft, answers, max(shape.depth for shape in alike), top_k)
        predictions += [_predict(shape, grown.counts(shape).tau, costs) for shape in alike]
    smallest_first = sorted(predictions, key=lambda p: (p.shape.kept, p.shape.depth))
    return Choice(sorted(smallest_first, key=lambda p: -p.tokens_per_s), len(answers))


def _predict(shape: Shape, tau: float, costs: Costs) -> Prediction:
    round_s = costs.round_s(shape)
    return Prediction(shape, tau, round_s, predicted_speedup(tau, costs.plain_s, round_s, 0.0))
