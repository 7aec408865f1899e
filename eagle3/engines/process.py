"""A server process of ours: started behind a guard, watched while it loads, ended for certain.

Its output goes to a log file that is kept; the last lines of it are in every error.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import httpx
import psutil

from eagle3.errors import BadInput, EngineFailed

HOST = "127.0.0.1"
POLL_S = 0.1
GRACE_S = 10.0
"""How long a server may take to end before it is killed."""
DYING_S = 2.0
"""How long after its last sign of life the end of a server may be noticed."""
LOG_LINES = 15
LOG_BYTES = 16_384
MEMORY_SHARE = 0.95
"""Of the memory that is free when it starts, a server may take so much."""


def choose_port(port: int | None = None) -> int:
    """A free port on this machine, or the one that is asked for.

    Raises:
        BadInput: it is taken, or may not be used.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((HOST, port or 0))
        except OSError as e:
            raise BadInput(
                f"port {port} of {HOST} cannot be used: {os.strerror(e.errno or 0)}",
                "stop what listens there, name another port, or none to get a free one",
            ) from None
        chosen: int = probe.getsockname()[1]
    return chosen


class Server:
    """A command that runs until `stop`, or until this process is gone.

    Args:
        name: of the engine, for messages.
        log: where its output goes; what an earlier one left there is replaced.
        memory_gib: it is ended when it takes more than this; most of what is free where None.
        environment: beside this process's own.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        memory_gib: float | None = None,
    ) -> None:
        self.name, self.log = name, log
        free = psutil.virtual_memory().available * MEMORY_SHARE
        limit = int(free if memory_gib is None else memory_gib * 2**30)
        guarded = [sys.executable, "-m", "eagle3.engines.guard", str(limit), str(GRACE_S)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                guarded + command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                start_new_session=True,  # a signal to our group leaves it to us to end it
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._guard.poll()

    def wait(self, answers: Callable[[], bool], seconds: float) -> None:
        """Wait until `answers` is true; a server that does not get there is ended.

        Raises:
            EngineFailed: it died, or took longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        try:
            while not answers():
                if self.exit_code is not None:
                    raise self.failed("died while it loaded")
                if time.monotonic() > deadline:
                    raise self.failed(f"did not answer within {seconds:g} s of its start")
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def ended(self, seconds: float = DYING_S) -> bool:
        """Whether it ends within so many seconds."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def failed(self, what: str) -> EngineFailed:
        """An error that says what it did, and what it wrote last."""
        code = self.exit_code
        ended = "" if code is None else f" ({_ending(code)})"
        return EngineFailed(
            f"{self.name} {what}{ended}; the end of its log:\n{self.last_lines()}",
            f"the whole log: {self.log}",
        )

    def last_lines(self, count: int = LOG_LINES) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-count:]) or "  (it is empty)"

    def stop(self) -> None:
        """End it and every process it started: TERM, and KILL after the grace."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def answers_ok(url: str) -> Callable[[], bool]:
    """Whether GET `url` is answered by status 200, for `Server.wait`."""

    def ok() -> bool:
        try:
            return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    return ok


def _ending(code: int) -> str:
    return f"signal {code - 128}" if code > 128 else f"exit code {code}"
