"""Runs a server, and sees to its end: `python -m eagle3.engines.guard LIMIT GRACE_S COMMAND...`

The guard's input is a pipe that only its parent holds. It closes when the parent closes it, and
when the parent is gone, `kill -9` included; then the command and whatever it has started are asked
to end with TERM and, after the grace, killed. So are they when they take more memory than LIMIT
bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

import psutil

POLL_S = 1.0
"""How often memory is looked at; every process of the machine is read for it."""
ENDING_S = 0.05
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
"""Of Linux's prctl."""


def guard(limit: int, grace_s: float, command: list[str]) -> int:
    """Run `command` until it ends, the input closes, or it takes more than `limit` bytes.

    Returns:
        The command's exit code; 128 + N if signal N ended it.
    """
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the parent ends us by closing the pipe
    # What the server leaves behind becomes a child of the guard, in whatever group it is.
    _prctl(SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_as_before
    )
    ended = [os.pidfd_open(child.pid)] if hasattr(os, "pidfd_open") else []
    while not _closed(ended) and child.poll() is None:
        used = sum(_private(process) for process in _descendants())
        if used > limit:
            gib, most = used / 2**30, limit / 2**30
            _say(f"ended: it took {gib:.2f} GiB of memory; the limit is {most:.2f} GiB")
            break
    _end(child, grace_s)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _as_before() -> None:
    """In the child: signals as they were, and the end with the guard, should that be killed."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    _prctl(SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _closed(ended: list[int]) -> bool:
    """Wait until there is something to look at; whether the parent has closed the pipe, or is gone.

    Args:
        ended: becomes readable as the server ends.
    """
    ready, _, _ = select.select([0, *ended], [], [], POLL_S)
    return 0 in ready and not os.read(0, 1)


def _descendants() -> list[psutil.Process]:
    """Every process that the server started and that still runs."""
    processes = psutil.Process().children(recursive=True)
    return [process for process in processes if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _private(process: psutil.Process) -> int:
    """Bytes of memory that are its own: without files that it maps and the system may drop."""
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _descendants() and time.monotonic() < deadline:
        child.poll()
        time.sleep(ENDING_S)
    _signal_all(signal.SIGKILL)


def _signal_all(signum: int) -> None:
    for process in _descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


def _say(message: str) -> None:
    sys.stderr.write(f"guard: {message}\n")


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
