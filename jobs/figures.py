"""What Prometheus is told, read from the database: the truth whichever process serves it.

`docs/operations.md` says what each figure means; a test holds the two, the dashboard and the alerts
together.
"""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from jobs import tally
from jobs.models import Job, Outbox, OutboxKind, Output, Stage, Usage
from jobs.settings import Settings
from jobs.shares import RUNNABLE
from jobs.states import JobStatus, StageStatus
from jobs.tally import BOUNDS, LONGER, Tally
from jobs.waiting import alive


class Figures(Collector):
    """Everything, as it is at `now`."""

    def __init__(self, session: Session, settings: Settings, now: datetime) -> None:
        self.session, self.settings, self.now = session, settings, now

    def text(self) -> bytes:
        """In Prometheus' text format, version 0.0.4."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        version = importlib.metadata.version("updraft")
        about = {"version": version, "mode": self.settings.mode}
        yield InfoMetricFamily("updraft_build", "This service", value=about)
        yield self._jobs()
        yield from self._queue()
        yield from self._running()
        yield from self._ended()
        yield from self._outbox()
        yield from self._alive()
        yield from self._taken()

    def _jobs(self) -> Metric:
        query = select(Job.status, func.count()).group_by(Job.status)
        found = {row[0]: row[1] for row in self.session.execute(query)}
        rows = ([status.value, found.get(status, 0)] for status in JobStatus)
        return _gauge("updraft_jobs", "Jobs by status", ["status"], rows)

    def _queue(self) -> Iterator[Metric]:
        since = func.coalesce(Stage.not_before, Stage.queued_at)
        query = (
            select(Stage.needs, func.count(), func.min(since))
            .join(Job, Job.id == Stage.job_id)
            .where(
                Stage.status == StageStatus.QUEUED,
                Job.status.in_(RUNNABLE),
                or_(Stage.not_before.is_(None), Stage.not_before <= self.now),
            )
            .group_by(Stage.needs)
        )
        rows = [(needs, n, self._age(oldest)) for needs, n, oldest in self.session.execute(query)]
        text = "Stages that could run now, by what they need"
        yield _gauge("updraft_queue_stages", text, ["needs"], ((r[0], r[1]) for r in rows))
        text = "How long the one that has waited longest has"
        yield _gauge("updraft_queue_age_seconds", text, ["needs"], ((r[0], r[2]) for r in rows))

    def _running(self) -> Iterator[Metric]:
        query = select(Stage.name, func.count()).where(Stage.status == StageStatus.RUNNING)
        rows = self.session.execute(query.group_by(Stage.name)).all()
        text = "Stages that a worker holds"
        yield _gauge("updraft_stages_running", text, ["stage"], (list(r) for r in rows))
        late = and_(Stage.status == StageStatus.RUNNING, Stage.lease_expires_at < self.now)
        found = self.session.scalar(select(func.count()).select_from(Stage).where(late)) or 0
        text = "Leases that have run out and have not been swept"
        yield _gauge("updraft_leases_overdue", text, [], [[found]])

    def _ended(self) -> Iterator[Metric]:
        name = "updraft_stage_attempts"
        text = "Attempts that ended, by how and why"
        attempts = CounterMetricFamily(name, text, labels=["stage", "outcome", "reason"])
        expiries = CounterMetricFamily(
            "updraft_lease_expiries", "Leases that ran out", labels=["stage"]
        )
        ended: dict[tuple[str, str, str], int] = defaultdict(int)
        done: dict[str, list[Tally]] = defaultdict(list)
        for row in self.session.scalars(select(Tally)):
            ended[row.stage, row.outcome, row.reason] += row.count
            if row.outcome == tally.SUCCEEDED:
                done[row.stage].append(row)
        for (stage, outcome, reason), number in sorted(ended.items()):
            if outcome == tally.EXPIRED:
                expiries.add_metric([stage], number)
            else:
                attempts.add_metric([stage, outcome, reason], number)
        yield from (attempts, expiries, _durations(done))

    def _outbox(self) -> Iterator[Metric]:
        """A record that could not be sent is due again later: it counts as failing, not as late."""
        pending, lag, failing = (dict.fromkeys(OutboxKind, 0.0) for _ in range(3))
        due = func.min(Outbox.available_at)
        query = select(Outbox.kind, func.count(), due)
        query = query.where(Outbox.sent_at.is_(None), Outbox.available_at <= self.now)
        for kind, number, oldest in self.session.execute(query.group_by(Outbox.kind)):
            pending[kind], lag[kind] = number, self._age(oldest)
        failed = select(Outbox.kind, func.count()).where(
            Outbox.sent_at.is_(None), Outbox.last_error.is_not(None)
        )
        for kind, number in self.session.execute(failed.group_by(Outbox.kind)):
            failing[kind] = number
        for name, text, values in (
            ("updraft_outbox_pending", "Records that are due and not sent", pending),
            ("updraft_outbox_lag_seconds", "How long the oldest of them has been due", lag),
            ("updraft_outbox_failing", "Records that could not be sent the last time", failing),
        ):
            yield _gauge(name, text, ["kind"], ([k.value, v] for k, v in values.items()))

    def _alive(self) -> Iterator[Metric]:
        number: dict[str, int] = defaultdict(int)
        for worker in alive(self.session, self.settings, self.now):
            number[worker.has] += 1
        text = "Workers that gave a sign of life within a lease, by what they have"
        yield _gauge("updraft_workers", text, ["has"], (list(i) for i in sorted(number.items())))
        swept = tally.seen(self.session, tally.RELAY)
        rows = [[self._age(swept)]] if swept else []
        yield _gauge("updraft_sweep_age_seconds", "Time since a relay last swept", [], rows)

    def _taken(self) -> Iterator[Metric]:
        """Charged when a lease ends, and counted while it lasts."""
        query = select(func.sum(Usage.seconds), func.sum(Usage.gpu_seconds))
        charged = self.session.execute(query).one()
        ours = select(Stage.started_at, Stage.gpus).where(Stage.status == StageStatus.RUNNING)
        held = [(self._age(at), gpus) for at, gpus in self.session.execute(ours)]
        seconds = (charged[0] or 0.0) + sum(age for age, _ in held)
        gpu_seconds = (charged[1] or 0.0) + sum(age * gpus for age, gpus in held)
        yield CounterMetricFamily("updraft_worker_seconds", "Time of workers taken", seconds)
        yield CounterMetricFamily("updraft_gpu_seconds", "Time of GPUs taken", gpu_seconds)
        stored = select(func.sum(Output.bytes)).where(Output.complete)
        size = float(self.session.scalar(stored) or 0)
        yield _gauge("updraft_outputs_bytes", "Stage outputs in the store", [], [[size]])

    def _age(self, since: datetime | None) -> float:
        return max(0.0, (self.now - since).total_seconds()) if since else 0.0


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[Iterable[object]]) -> Metric:
    """A gauge from rows of label values and, last, the figure."""
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for *values, figure in rows:
        gauge.add_metric([str(v) for v in values], float(str(figure)))
    return gauge


def _durations(done: dict[str, list[Tally]]) -> Metric:
    text = "How long attempts that succeeded took"
    found = HistogramMetricFamily("updraft_stage_duration_seconds", text, labels=["stage"])
    for stage, rows in sorted(done.items()):
        buckets, total = [], 0
        for le in BOUNDS:
            total += sum(row.count for row in rows if row.le == le)
            buckets.append(("+Inf" if le == LONGER else f"{le:.1f}", float(total)))
        found.add_metric([stage], buckets, sum(row.seconds for row in rows))
    return found
