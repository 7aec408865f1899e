"""One program of the service, as on a machine of its own: started, killed, frozen, woken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.servers import wait_until

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Part:
    """A program of the service, which a guard ends with the tests."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    _guard: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> psutil.Process:
        """The program itself."""
        assert self._guard is not None
        return psutil.Process(self._guard.pid).children()[0]

    @property
    def ended(self) -> bool:
        return self._guard is not None and self._guard.poll() is not None

    def start(self) -> None:
        command = [sys.executable, "-m", "api.guard", str(os.getpid()), "20", *self.argv]
        with self.log.open("ab") as out:
            guard = subprocess.Popen(
                command, cwd=ROOT, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        self._guard = guard
        wait_until(lambda: psutil.Process(guard.pid).children(), 30, f"{self.name} starts")

    def kill(self) -> None:
        """As the kernel does it: nothing is said, nothing saved; its guard only sees it end."""
        self.process.kill()
        assert self._guard is not None
        self._guard.wait(30)

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it and all that it has started, as a machine does that hangs."""
        for process in (self.process, *self.process.children(recursive=True)):
            process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        for process in (self.process, *self.process.children(recursive=True)):
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to go, and wait."""
        if self._guard is not None and self._guard.poll() is None:
            self._guard.terminate()
            self._guard.wait(60)


def processes(word: str) -> list[str]:
    """Command lines of this machine that have a word in them."""
    lines = (p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"]))
    return [" ".join(line) for line in lines if any(word in part for part in line)]
