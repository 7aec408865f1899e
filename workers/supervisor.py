"""Runs one child process in its own process group, watches it, and makes sure that it ends.

The child is told to stop (TERM, a grace, then KILL to the group) when the job is cancelled or
paused, the worker goes, it makes no progress, or it runs too long. It is killed at once when the
lease is lost: whatever it would still do is another's to do.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from workers.keeper import Keeper

log = logging.getLogger(__name__)

POLL_S = 0.2
LINE_LIMIT = 1 << 20
VMSTAT = Path("/proc/vmstat")


class Cause(StrEnum):
    """Why the supervisor ended a child."""

    CANCEL = "cancel"
    PAUSE = "pause"
    STOP = "stop"
    NO_PROGRESS = "no_progress"
    RUNTIME = "runtime"
    LOST = "lost"


@dataclass(frozen=True)
class Limits:
    """How long a child may be silent, run, and take to stop; seconds."""

    no_progress: float
    runtime: float
    grace: float


@dataclass
class ChildEnd:
    """How a child ended: its exit code (negative: the signal), and what it said last."""

    code: int
    cause: Cause | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    silent: bool = False
    """It has closed its output."""
    memory_killed: bool = False
    """The kernel killed some process for want of memory while the child ran."""


def run_child(
    command: Sequence[str],
    *,
    cwd: Path,
    env: dict[str, str],
    stderr: Path,
    limits: Limits,
    keeper: Keeper,
    stop: threading.Event,
    on_line: Callable[[dict[str, Any]], None],
    on_tick: Callable[[], None],
) -> ChildEnd:
    """Run a command to its end. `on_line` gets each JSON line, `on_tick` is called all the time.

    After a `question` line the child waits; it goes on when `on_line` has returned.
    """
    kills = oom_kills()
    stderr.parent.mkdir(parents=True, exist_ok=True)
    with stderr.open("ab") as errors:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert child.stdout is not None and child.stdin is not None  # noqa: S101, PT018 - piped
        end = ChildEnd(code=0)
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
        reader.start()
        try:
            _watch(child, lines, end, limits, keeper, stop, _answering(child, on_line), on_tick)
        finally:
            kill_group(child.pid)  # what the child left behind, or the child itself on an error
            child.wait()
            reader.join(timeout=5)
            child.stdout.close()
            _close(child.stdin)
    _take_lines(lines, end, on_line)
    on_tick()
    end.code = child.returncode
    end.memory_killed = oom_kills() > kills
    return end


def _answering(
    child: subprocess.Popen[str], on_line: Callable[[dict[str, Any]], None]
) -> Callable[[dict[str, Any]], None]:
    def handle(line: dict[str, Any]) -> None:
        on_line(line)
        if line["kind"] == "question" and child.stdin is not None:
            try:
                child.stdin.write("\n")
                child.stdin.flush()
            except BrokenPipeError:
                log.info("the child ended before it was answered")

    return handle


def _close(stream: IO[str]) -> None:
    try:
        stream.close()
    except BrokenPipeError:  # the rest of an answer, which nobody reads any more
        return


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory."""
    if not VMSTAT.is_file():
        return 0
    fields = (line.split() for line in VMSTAT.read_text().splitlines())
    return next((int(value) for name, value in fields if name == "oom_kill"), 0)


def kill_group(pid: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process group that may be gone already."""
    try:
        os.killpg(pid, sig)
    except (ProcessLookupError, PermissionError):
        return


def _watch(
    child: subprocess.Popen[str],
    lines: queue.Queue[str | None],
    end: ChildEnd,
    limits: Limits,
    keeper: Keeper,
    stop: threading.Event,
    on_line: Callable[[dict[str, Any]], None],
    on_tick: Callable[[], None],
) -> None:
    started = heard = time.monotonic()
    deadline: float | None = None
    while child.poll() is None:
        if end.silent:
            _wait(child)
        elif _take_lines(lines, end, on_line, wait=POLL_S):
            heard = time.monotonic()
        on_tick()
        now = time.monotonic()
        if keeper.lost.is_set():
            end.cause = Cause.LOST
            kill_group(child.pid)
            return
        if deadline is None:
            end.cause = _cause(now - started, now - heard, limits, keeper, stop)
            if end.cause is not None:
                log.info("stopping the child: %s", end.cause, extra=keeper.context())
                kill_group(child.pid, signal.SIGTERM)
                deadline = now + limits.grace
        elif now > deadline:
            log.warning("the child did not stop within its grace", extra=keeper.context())
            kill_group(child.pid)
            return


def _wait(child: subprocess.Popen[str]) -> None:
    try:
        child.wait(timeout=POLL_S)
    except subprocess.TimeoutExpired:
        return


def _cause(
    running: float, silent: float, limits: Limits, keeper: Keeper, stop: threading.Event
) -> Cause | None:
    if keeper.cancel.is_set():
        return Cause.CANCEL
    if keeper.pause.is_set():
        return Cause.PAUSE
    if stop.is_set():
        return Cause.STOP
    if running > limits.runtime:
        return Cause.RUNTIME
    if silent > limits.no_progress:
        return Cause.NO_PROGRESS
    return None


def _take_lines(
    lines: queue.Queue[str | None],
    end: ChildEnd,
    on_line: Callable[[dict[str, Any]], None],
    wait: float | None = None,
) -> bool:
    """Handle the lines that have come, waiting for the first. Returns whether there was one."""
    taken = False
    while True:
        try:
            text = lines.get(timeout=wait) if wait and not taken else lines.get_nowait()
        except queue.Empty:
            return taken
        if text is None:
            end.silent = True
            return taken
        taken = True
        line = _parse(text)
        if line["kind"] == "result":
            end.result = line
        elif line["kind"] == "error":
            end.error = line
        else:
            on_line(line)


def _parse(text: str) -> dict[str, Any]:
    """A line of the contract; anything else a child prints is kept as a log line.

    PostgreSQL holds neither NUL nor NaN: one becomes U+FFFD, the other null.
    """
    text = text.replace("\0", "\ufffd").replace("\\u0000", "\\ufffd")
    try:
        line = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        line = None
    if isinstance(line, dict) and isinstance(line.get("kind"), str):
        return line
    return {"kind": "log", "level": "info", "message": text.strip()[:2000]}


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    while text := stream.readline(LINE_LIMIT):
        if text.strip():
            lines.put(text)
    lines.put(None)  # wakes the supervisor the moment the child closes its output, as it ends
