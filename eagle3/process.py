"""A stage's process among others: signals that ask it to stop, one process a run directory, and the
processes that `torchrun` starts to do one stage together."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from eagle3.errors import Stopped


def processes() -> int:
    """How many processes do this stage together, as `torchrun` says; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this is, from 0; the first alone writes to the run directory."""
    return int(os.environ.get("RANK", "0")) if processes() > 1 else 0


def asks() -> bool:
    """Whether whoever started this process answers questions."""
    return bool(os.environ.get("UPDRAFT_ASK"))


def leave(code: int) -> NoReturn:
    """End this process. One of several ends at once, without taking its interpreter down: a mesh of
    PyTorch (`sharded`) stays in caches and keeps gloo's threads, past `destroy_process_group`. One
    of these that lets go of a tensor late wants the interpreter, and the process then aborts (-6).
    """
    if processes() == 1:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that TERM and INT set; a second INT interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(signum: int, _: Any) -> None:
        if stop.is_set() and signum == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {s: signal.signal(s, handle) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


@contextmanager
def alone(
    run: Path, stage: str, say: Callable[[str], None], stop: threading.Event
) -> Iterator[None]:
    """Hold the run directory; another process's stage is waited for. A dead process holds nothing.

    Raises:
        Stopped: TERM or INT came while waiting.
    """
    with (run / "lock").open("a") as lock:
        said = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    say(f"another process works in {run}; waiting until its stage ends")
                said = True
                if stop.wait(0.2):
                    raise Stopped(
                        f"{stage} was stopped before it began", "run the same command to go on"
                    ) from None
        yield
