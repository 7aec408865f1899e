"""Runs one command and outlives it by a moment: `python -m api.guard PARENT_PID GRACE_S COMMAND...`

`updraft up` starts every child through a guard. The command gets its own process group; when the
guard is told to stop, or whoever started it is gone (`kill -9` included), the whole group is asked
to end with TERM and, after the grace or a second signal, killed. So nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

POLL_S = 0.5
"""How often the guard looks whether its parent still lives."""

LEFTOVER_S = 3.0
"""How long members of the group may outlive the command itself."""


def guard(parent: int, grace_s: float, command: list[str]) -> int:
    """Run `command` until it ends, a signal arrives, or process `parent` is no longer ours.

    Returns:
        The command's exit code; 128 + N if signal N ended it.
    """
    asked: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, _: asked.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    while _running(child, POLL_S):
        if asked or os.getppid() != parent:
            _signal_group(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while len(asked) < 2 and time.monotonic() < deadline and _running(child, POLL_S):
                pass
            break
    _end_group(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _running(child: subprocess.Popen[bytes], wait_s: float) -> bool:
    try:
        child.wait(wait_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def _end_group(child: subprocess.Popen[bytes]) -> None:
    # A server may leave workers of its own in the group; they get a moment, then no choice.
    if child.poll() is not None and _signal_group(child.pid, signal.SIGTERM):
        deadline = time.monotonic() + LEFTOVER_S
        while time.monotonic() < deadline and _signal_group(child.pid, 0):
            time.sleep(0.1)
    _signal_group(child.pid, signal.SIGKILL)
    child.wait()


def _signal_group(group: int, signum: int) -> bool:
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    sys.exit(guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))


if __name__ == "__main__":
    main()
