"""What was measured: every run of every load, and the figures that are made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle3.bench.metrics import Spread, median_range, spread
from eagle3.data.records import Record
from eagle3.engines.engine import Drafted
from eagle3.throughput.cost import Acceptance, Point
from eagle3.throughput.load import Heard, Load


@dataclass(frozen=True, order=True)
class Cell:
    """A draft length under a load: so many answers in progress, or so many requests a second."""

    drafted: int
    concurrency: int | None = None
    rate: float | None = None

    @property
    def plain(self) -> Cell:
        """The target alone under the same load."""
        return Cell(0, self.concurrency, self.rate)


class Latencies(Record):
    """Mean and percentiles, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, found: Spread) -> Latencies:
        return cls(**vars(found))


class Sample(Record):
    """One run of one cell."""

    turn: int
    """Runs of one turn were measured one after another: they are compared with each other."""
    drafted: int
    concurrency: int | None
    rate: float | None
    requests: int
    tokens: int
    seconds: float
    first_s: Latencies | None
    """Time to first token; None where the engine does not stream."""
    token_s: Latencies | None
    """Time per output token, of each answer."""
    wait_s: Latencies | None
    """Inter-token latency: from one arrival to the next."""
    in_progress: float | None
    """Mean number of answers in progress."""
    rounds: int
    drafted_tokens: int
    accepted: int
    accepted_at: tuple[int, ...]
    """Rounds whose first n drafted tokens were all accepted, as the engine counts them."""

    @property
    def cell(self) -> Cell:
        return Cell(self.drafted, self.concurrency, self.rate)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def sample(turn: int, cell: Cell, load: Load, heard: Heard, counted: Drafted) -> Sample:
    """One run's figures; `docs/metrics.md` defines them."""
    replies, streamed = heard.replies, heard.streamed
    waits = [wait for reply in replies for wait in reply.waits_s]
    each = [reply.token_s for reply in replies if reply.token_s is not None]
    return Sample(
        turn=turn,
        drafted=cell.drafted,
        concurrency=cell.concurrency,
        rate=cell.rate,
        requests=load.requests,
        tokens=sum(reply.tokens for reply in replies),
        seconds=heard.seconds,
        first_s=_latencies([reply.first_s for reply in replies]) if streamed else None,
        token_s=_latencies(each) if streamed else None,
        wait_s=_latencies(waits) if streamed else None,
        in_progress=sum(r.seconds for r in replies) / heard.seconds if streamed else None,
        rounds=counted.rounds,
        drafted_tokens=counted.drafted,
        accepted=counted.accepted,
        accepted_at=counted.accepted_at,
    )


def _latencies(values: Sequence[float]) -> Latencies | None:
    return Latencies.of(spread(values)) if values else None


class Samples:
    """All runs, by cell."""

    def __init__(self, found: Iterable[Sample] = ()) -> None:
        self.all: list[Sample] = list(found)

    def of(self, cell: Cell) -> list[Sample]:
        return [sample for sample in self.all if sample.cell == cell]

    def cells(self) -> list[Cell]:
        return sorted(
            {sample.cell for sample in self.all},
            key=lambda c: (c.rate or 0.0, c.concurrency or 0, c.drafted),
        )

    def tokens_per_s(self, cell: Cell) -> float:
        return statistics.median(sample.tokens_per_s for sample in self.of(cell))

    def relative(self, cell: Cell) -> tuple[float, float, float]:
        """Throughput over plain decoding's in the same turn: the median, and its interval."""
        plain = {sample.turn: sample.tokens_per_s for sample in self.of(cell.plain)}
        return median_range([s.tokens_per_s / plain[s.turn] for s in self.of(cell)])

    def tau(self, cell: Cell) -> float:
        counted = self.of(cell)
        rounds = sum(sample.rounds for sample in counted)
        return 1 + sum(sample.accepted for sample in counted) / rounds if rounds else 1.0

    def latencies(self, cell: Cell, name: str) -> Latencies | None:
        """The median over the runs of each percentile of `first_s`, `token_s` or `wait_s`."""
        found = [value for s in self.of(cell) if (value := getattr(s, name)) is not None]
        if not found:
            return None
        fields = Latencies.model_fields
        return Latencies(**{f: statistics.median(getattr(v, f) for v in found) for f in fields})

    def point(self, cell: Cell) -> Point:
        """What a cost model is fitted to; plain decoding and a draft alike are turned to the same
        moment by the turn's ratio, so that a slow moment of the machine is in neither."""
        assert cell.concurrency is not None
        first = self.latencies(cell, "first_s")
        return Point(
            cell.concurrency,
            cell.drafted,
            self.tokens_per_s(cell.plain) * self.relative(cell)[0],
            first.mean if first else 0.0,
            self.tau(cell),
        )

    def acceptance(self, cells: Iterable[Cell]) -> Acceptance:
        """By position, over all runs of these cells that drafted so far."""
        found = [sample for cell in cells for sample in self.of(cell) if sample.rounds]
        deepest = max((sample.drafted for sample in found), default=0)
        at = []
        for depth in range(deepest):
            reached = [sample for sample in found if sample.drafted > depth]
            held = sum(s.accepted_at[depth] for s in reached if len(s.accepted_at) > depth)
            at.append(held / sum(sample.rounds for sample in reached))
        return Acceptance(tuple(at))
