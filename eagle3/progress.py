"""How a stage reports: JSON lines on stdout and in its log file (`kind`: progress, metric, log,
checkpoint, question, result, error)."""

from __future__ import annotations

import io
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from eagle3.process import rank


class Progress:
    """Writes JSON lines to stdout and to the stage's log file."""

    def __init__(self, stage: str, log: Path, stream: TextIO | io.TextIOBase | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.stage = stage
        self._log = log
        self._stream = stream or sys.stdout
        self._started = time.monotonic()
        self._first_done: float | None = None
        self._done = 0.0

    def emit(self, kind: str, **fields: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"t": now, "stage": self.stage, "kind": kind, **fields})
        with self._log.open("a") as log:
            log.write(line + "\n")
        self._stream.write(line + "\n")
        self._stream.flush()

    def progress(self, done: float, total: float, unit: str, message: str = "") -> None:
        """Report `done` of `total`; rate and ETA come from this process's own pace, since it last
        began to count."""
        if self._first_done is None or done < self._done:
            self._first_done, self._started = done, time.monotonic()
        self._done = done
        elapsed = time.monotonic() - self._started
        rate = (done - self._first_done) / elapsed if elapsed > 0 else 0.0
        self.emit(
            "progress",
            done=done,
            total=total,
            unit=unit,
            rate=round(rate, 3),
            eta_s=round((total - done) / rate, 1) if rate > 0 else None,
            message=message,
        )

    def metrics(self, step: int, **metrics: float) -> None:
        """Report values at a step; names such as `train/loss` travel to the tracker unchanged."""
        self.emit("metric", step=step, metrics=metrics)

    def ask(self, **fields: Any) -> None:
        """Ask whoever started this process, and wait until they answer with a line."""
        self.emit("question", **fields)
        sys.stdin.readline()

    def info(self, message: str) -> None:
        self.emit("log", level="info", message=message)

    def warning(self, message: str) -> None:
        self.emit("log", level="warning", message=message)


class Quiet(Progress):
    """For all processes but the first, which reports for them: they only warn, on stderr."""

    def emit(self, kind: str, **fields: Any) -> None:
        if kind == "error" or fields.get("level") == "warning":
            sys.stderr.write(f"{self.stage}, process {rank()}: {fields['message']}\n")


def reporter(stage: str, run: Path, stream: TextIO | io.TextIOBase | None = None) -> Progress:
    """How this process reports on a stage."""
    return (Quiet if rank() else Progress)(stage, run / "logs" / f"{stage}.jsonl", stream)
