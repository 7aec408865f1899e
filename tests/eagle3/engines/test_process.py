"""Server processes: readiness, what an error says, limits, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from eagle3.engines.process import Server, choose_port
from eagle3.errors import BadInput, EngineFailed
from tests.processes import alive
from tests.servers import wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def started(tmp_path: Path, code: str, **more: object) -> Server:
    return Server("toy", python(code), tmp_path / "log", **more)  # type: ignore[arg-type]


def pids(log: Path, count: int) -> list[psutil.Process]:
    """Processes whose ids the server has printed."""
    wait_until(lambda: len(log.read_text().split()) >= count, 20, "ids in the log")
    return [psutil.Process(int(pid)) for pid in log.read_text().split()]


def gone(processes: list[psutil.Process]) -> bool:
    return not alive(processes)


SLEEPS = "import os, time; print(os.getpid()); time.sleep(60)"
STUBBORN = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {SLEEPS!r}], start_new_session=True)
{SLEEPS}
"""
"""Ignores TERM, and has a child in a session of its own."""


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=rf"port {port} of 127\.0\.0\.1"):
            choose_port(port)
    assert choose_port(port) == port
    assert choose_port() > 0


def test_waits_until_it_answers(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS) as server:
        server.wait(lambda: bool(server.log.read_text()), 20)
        assert server.exit_code is None
    assert server.exit_code is not None


def test_one_that_dies_says_its_last_lines(tmp_path: Path) -> None:
    code = "import sys; [print(f'line {i}') for i in range(40)]; sys.exit('no such file: x.gguf')"
    with pytest.raises(EngineFailed) as failed, started(tmp_path, code) as server:
        server.wait(lambda: False, 20)
    assert "toy died while it loaded (exit code 1)" in str(failed.value)
    assert "no such file: x.gguf" in str(failed.value)
    assert "line 39" in str(failed.value)
    assert "line 3\n" not in str(failed.value)
    assert str(tmp_path / "log") in failed.value.hint


def test_one_that_crashes_says_by_which_signal(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    with pytest.raises(EngineFailed, match=r"signal 11\)"), started(tmp_path, code) as server:
        server.wait(lambda: False, 20)


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    server = started(tmp_path, SLEEPS)
    processes = pids(server.log, 1)
    with pytest.raises(EngineFailed, match=r"did not answer within 0\.2 s"):
        server.wait(lambda: False, 0.2)
    assert gone(processes)


def test_one_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    code = "import time; x = bytearray(b'1') * 200_000_000; time.sleep(60)"
    with pytest.raises(EngineFailed, match=r"the limit is 0\.10 GiB"):
        started(tmp_path, code, memory_gib=0.1).wait(lambda: False, 20)


def test_stop_ends_what_ignores_it_and_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.process.GRACE_S", 0.3)
    server = started(tmp_path, STUBBORN)
    processes = pids(server.log, 2)
    assert not gone(processes)
    server.stop()
    server.stop()
    assert gone(processes)


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from eagle3.engines.process import Server
import sys, time
Server("toy", [sys.executable, "-c", {SLEEPS!r}], Path({str(tmp_path / "log")!r}))
time.sleep(60)
"""
    parent = subprocess.Popen(python(code))
    wait_until((tmp_path / "log").is_file, 20, "it starts")
    processes = pids(tmp_path / "log", 1)
    parent.kill()
    parent.wait()
    wait_until(lambda: gone(processes), 20, "its server ends")


def test_the_server_ends_with_a_guard_that_is_killed(tmp_path: Path) -> None:
    server = started(tmp_path, SLEEPS)
    [process] = pids(server.log, 1)
    guard = process.parent()
    assert guard is not None
    os.kill(guard.pid, signal.SIGKILL)
    wait_until(lambda: gone([process]), 20, "it ends")
    assert server.ended()
    server.stop()


def test_its_environment_is_ours_and_what_was_added(tmp_path: Path) -> None:
    code = "import os; print(os.environ['TOY'], 'HOME' in os.environ)"
    with started(tmp_path, code, environment={"TOY": "yes"}) as server:
        assert server.ended(20)
        assert server.last_lines() == "  yes True"
