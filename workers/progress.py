"""From the child's lines to the stage's row and the job's events, about once a second."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from jobs import leases
from jobs.errors import LeaseLost
from jobs.leases import Event, Lease
from jobs.logs import redact
from workers.keeper import Keeper
from workers.runtime import Runtime

log = logging.getLogger(__name__)

FLUSH_S = 1.0
KEEP_LOGS = 200
"""Log lines kept while the database is away; the run's own log file has them all."""
PROGRESS = ("done", "total", "unit", "rate", "eta_s")


class Reporter:
    """Collects what a child says and writes it in batches, guarded by the lease.

    Metrics become one `metrics` event a batch, `{step, metrics, points: [{t, step, metrics}]}` with
    the latest values on top, and are mirrored from there to MLflow. So are `samples` of the
    machine, beside which stands how fast the stage is: their step is the stage's second.
    """

    def __init__(self, rt: Runtime, lease: Lease, keeper: Keeper) -> None:
        self.rt, self.lease, self.keeper = rt, lease, keeper
        self.checkpoints: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Checkpoints that are ready to be recorded, from whichever thread made them so."""
        self.samples: queue.SimpleQueue[dict[str, float]] = queue.SimpleQueue()
        """Figures of the machine, from the monitor's thread."""
        self.recorded: Callable[[dict[str, Any]], None] = lambda _: None
        """Told of each checkpoint that the database has come to name."""
        self._progress: dict[str, Any] = {}
        self._points: list[dict[str, Any]] = []
        self._logs: list[Event] = []
        self._checkpoint: dict[str, Any] | None = None
        self._dirty = False
        self._flushed = 0.0

    def line(self, line: dict[str, Any]) -> None:
        """Take in a progress, metric or log line."""
        match line["kind"]:
            case "progress":
                self._progress.update({k: line.get(k) for k in PROGRESS})
                self._progress["message"] = redact(line.get("message") or "")
            case "metric":
                values = {k: v for k, v in line["metrics"].items() if v is not None}  # NaN is none
                self._points.append({"t": line.get("t"), "step": line["step"], "metrics": values})
                latest = {**self._progress.get("metrics", {}), **values}
                self._progress.update(step=line["step"], metrics=latest)
            case "log":
                event = Event("log", str(line.get("message", "")), str(line.get("level", "info")))
                self._logs = [*self._logs, event][-KEEP_LOGS:]
            case _:
                return
        self._dirty = True

    def tick(self) -> None:
        """Write what has gathered, if the last time is long enough ago."""
        if time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered. It is kept for the next time when the database is away."""
        while not self.checkpoints.empty():
            self._checkpoint, self._dirty = self.checkpoints.get(), True
        while not self.samples.empty():
            self._points.append(self._sampled(self.samples.get()))
            self._dirty = True
        if not self._dirty:
            return
        self._flushed = time.monotonic()
        try:
            with self.rt.db.write() as session:
                leases.report(
                    session,
                    self.lease,
                    now=self.rt.clock(),
                    progress=dict(self._progress) or None,
                    checkpoint=self._checkpoint,
                    events=self._events(),
                )
        except LeaseLost:
            self.keeper.lost.set()
        except SQLAlchemyError as e:
            name = type(e).__name__
            log.warning("progress not written: %s", name, extra=self.keeper.context())
            return
        else:
            if self._checkpoint is not None:
                self.recorded(self._checkpoint)
        self._points, self._logs, self._checkpoint, self._dirty = [], [], None, False

    def _events(self) -> list[Event]:
        events = list(self._logs)
        if self._points:
            last = self._points[-1]
            step = self._progress.get("step", last["step"])
            latest = self._progress.get("metrics", last["metrics"])
            data = {"step": step, "metrics": latest, "points": self._points}
            events.append(Event("metrics", f"step {step}", data=data))
        if self._checkpoint is not None:
            text = f"checkpoint at step {self._checkpoint['step']}"
            events.append(Event("checkpoint", text, data=self._checkpoint))
        return events

    def _sampled(self, figures: dict[str, float]) -> dict[str, Any]:
        now, rate = self.rt.clock(), self._progress.get("rate")
        if rate is not None:
            name = f"{self.lease.stage}/{self._progress['unit']}s_per_s"
            figures = {**figures, name: float(rate)}
        seconds = int((now - self.lease.since).total_seconds())
        return {"t": now.isoformat(), "step": seconds, "metrics": figures}
