"""The processes of one Updraft on one machine: started, waited for, restarted, stopped.

Each child runs under `api.guard` in a session of its own, so a Ctrl-C in the terminal reaches only
the parent, which then stops the children in order. `HOME/instance.json` says what runs, and a lock
on `HOME/instance.lock` that it still does; the lock goes with the process that held it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import httpx
import psutil

from api.programs import Program, StartError, check_startable, local_url
from jobs.settings import Settings

RESTART_MAX_S = 30.0
"""Longest pause before a child that keeps ending is started again."""


class AlreadyRunning(StartError):
    """Another process runs an instance in this home."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid, self.url = pid, url
        super().__init__(f"Updraft already runs in this home: {url} (process {pid})")


class Child:
    """One program, its process and its log."""

    def __init__(self, program: Program, log: Path, env: dict[str, str]) -> None:
        self.program = program
        self.log = log
        self.restarts = 0
        self.not_before = 0.0
        self._started = 0.0
        self._env = {**env, **program.env}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def code(self) -> int | None:
        """Exit code of the latest run; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        command = [sys.executable, "-m", "api.guard", str(os.getpid()), str(self.program.grace_s)]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, *self.program.argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        self._started = time.monotonic()

    def let_start(self) -> None:
        """Wait until it answers, where its program wants its start to be whole."""
        deadline = self._started + self.program.start_s
        while (
            self.code is None
            and time.monotonic() < deadline
            and not _answers(self.program.ready_url)
        ):
            time.sleep(0.2)

    def ask_to_stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until it has ended. The guard keeps the grace; a few seconds more are a broken guard."""
        if self._process is None:
            return
        try:
            self._process.wait(self.program.grace_s + 15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def end_leftovers(self) -> None:
        """Kill what a guard that was itself killed left running: it is in the guard's session."""
        if self._process is None or (self._process.poll() or 0) >= 0:
            return
        for pid in psutil.pids():
            try:
                if os.getsid(pid) == self._process.pid:
                    os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def tail(self, lines: int = 12) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _environment(program: Program, home: Path) -> dict[str, str]:
    """What a program inherits; MLflow is not ours and gets none of our settings or tokens."""
    ours = {**os.environ, "UPDRAFT_HOME": str(home)}
    if program.name != "mlflow":
        return ours
    return {k: v for k, v in ours.items() if not k.startswith("UPDRAFT_") and k != "HF_TOKEN"}


class Service:
    """All children of one home.

    Args:
        settings: decides the home.
        programs: what to run, in starting order.
        say: told, in one line, what happens.
    """

    def __init__(
        self, settings: Settings, programs: Iterable[Program], say: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self._home = settings.home.resolve()
        self._say = say
        self._lock: IO[str] | None = None
        logs = self._home / "logs"
        self.children = [
            Child(p, logs / f"{p.name}.log", _environment(p, self._home)) for p in programs
        ]

    def start(self, prepare: Callable[[], None]) -> None:
        """Take the home and start every child.

        Args:
            prepare: runs once the home is ours and before any child does (migrations).

        Raises:
            AlreadyRunning: another process holds the home.
            StartError: a port is taken.
        """
        (self._home / "logs").mkdir(parents=True, exist_ok=True)
        self._take_lock()
        for child in self.children:
            check_startable(child.program)
        prepare()
        for child in self.children:
            child.start()
        self._write_instance()

    def wait_ready(self, names: Iterable[str], timeout_s: float = 120.0) -> None:
        """Until the named children answer.

        Raises:
            StartError: one ended or did not answer in time; the end of its log is in the message.
        """
        deadline = time.monotonic() + timeout_s
        for child in [c for c in self.children if c.program.name in set(names)]:
            while not _answers(child.program.ready_url):
                self._fail_on_ended()
                if time.monotonic() > deadline:
                    raise StartError(
                        f"{child.program.name} did not answer within {timeout_s:.0f} s; "
                        f"see {child.log}\n{child.tail()}"
                    )
                time.sleep(0.2)
        self._fail_on_ended()

    def supervise(self) -> None:
        """Start again what has ended, with growing pauses. Call about once a second."""
        now = time.monotonic()
        for child in [c for c in self.children if c.code is not None]:
            if not child.not_before:
                child.end_leftovers()
                pause = min(RESTART_MAX_S, 2.0**child.restarts)
                child.not_before = now + pause
                self._say(
                    f"{child.program.name} ended (exit {child.code}); again in {pause:.0f} s. "
                    f"Log: {child.log}"
                )
            elif now >= child.not_before:
                child.restarts += 1
                child.not_before = 0.0
                child.start()
                self._write_instance()

    def stop(self) -> None:
        """Stop the worker first, so that it can still report; then the others, together."""
        running = [c for c in self.children if c.pid is not None and c.code is None]
        if any(c.program.name == "worker" for c in running):
            self._say("stopping the worker (a stage in progress saves a checkpoint first)")
        for group in (
            [c for c in running if c.program.name == "worker"],
            [c for c in running if c.program.name != "worker"],
        ):
            for child in group:
                child.let_start()
                child.ask_to_stop()
            for child in group:
                child.wait()
        self._release()

    def kill(self) -> None:
        """End everything at once, after `stop` was interrupted; a stage resumes from its last
        checkpoint. A guard takes the second signal as the end of the grace."""
        for child in self.children:
            child.ask_to_stop()
            child.ask_to_stop()
        for child in self.children:
            child.wait()
        self._release()

    def _fail_on_ended(self) -> None:
        for child in self.children:
            if child.code is not None:
                name = child.program.name
                raise StartError(
                    f"{name} ended with exit {child.code}; {child.log}:\n{child.tail()}"
                )

    def _take_lock(self) -> None:
        self._lock = (self._home / "instance.lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            found = running_instance(self.settings)
            raise AlreadyRunning(*(found or (0, local_url(self.settings)))) from None

    def _write_instance(self) -> None:
        state = {
            "pid": os.getpid(),
            "url": local_url(self.settings),
            "children": {c.program.name: c.pid for c in self.children},
        }
        (self._home / "instance.json").write_text(json.dumps(state, indent=2) + "\n")

    def _release(self) -> None:
        for child in self.children:
            child.end_leftovers()
        if self._lock:
            (self._home / "instance.json").unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def running_instance(settings: Settings) -> tuple[int, str] | None:
    """Process id and URL of the instance that holds this home, if one does."""
    lock, state = settings.home / "instance.lock", settings.home / "instance.json"
    if not lock.exists():
        return None
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            known = json.loads(state.read_text()) if state.exists() else {}
            return known.get("pid", 0), known.get("url", local_url(settings))
    return None


def _answers(url: str | None) -> bool:
    if url is None:
        return True
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.TransportError:
        return False
