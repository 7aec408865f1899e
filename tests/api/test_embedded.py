"""Real processes: short ones of our own, and once the API."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from api.client import Client
from api.embedded import AlreadyRunning, Service, running_instance
from api.programs import Program, StartError, port_is_free, programs
from jobs.settings import Settings

SLEEP = "import time; time.sleep(600)"
FAMILY = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{SLEEP}']).wait()"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


def _python(code: str, **fields: object) -> Program:
    argv = [sys.executable, "-c", code]
    return Program(name="program", argv=argv, **fields)  # type: ignore[arg-type]


@pytest.fixture
def service(settings: Settings) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(*chosen: Program) -> Service:
        made.append(Service(settings, chosen, lambda _: None))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def _wait(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Real processes take real moments: poll, as nothing here can inject their clock."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _family(pid: int | None) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return found


SLOW_START = """
import http.server, pathlib, sys, time
time.sleep(2)
pathlib.Path(sys.argv[1]).touch()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("start_s", "whole"), [(60.0, True), (0.0, False)])
def test_a_start_that_must_be_whole_is_let_finish(
    service: Callable[..., Service], tmp_path: Path, start_s: float, whole: bool
) -> None:
    port, made = _free_port(), tmp_path / "made"
    argv = [sys.executable, "-c", SLOW_START, str(made), str(port)]
    url = f"http://127.0.0.1:{port}"
    one = service(Program(name="tables", argv=argv, ready_url=url, start_s=start_s))
    one.start(lambda: None)
    one.stop()
    assert made.exists() == whole


@pytest.mark.slow
def test_stop_ends_children_and_grandchildren(service: Callable[..., Service]) -> None:
    one = service(_python(FAMILY))
    one.start(lambda: None)
    pid = one.children[0].pid
    assert _wait(lambda: len(_family(pid)) == 2)
    everyone = _family(pid)
    one.stop()
    assert not any(p.is_running() for p in everyone)
    assert running_instance(one.settings) is None


def test_a_deaf_child_is_killed_after_its_grace(service: Callable[..., Service]) -> None:
    one = service(_python(DEAF, grace_s=0.2))
    one.start(lambda: None)
    pid = one.children[0].pid
    assert _wait(lambda: len(_family(pid)) == 1)
    everyone = _family(pid)
    one.stop()
    assert not any(p.is_running() for p in everyone)


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-m', 'api.guard', str(os.getpid()), '1',"
        f" sys.executable, '-c', {SLEEP!r}], start_new_session=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    assert _wait(lambda: len(_family(parent.pid)) == 2)
    everyone = _family(parent.pid)
    parent.kill()
    parent.wait()
    assert _wait(lambda: not any(p.is_running() for p in everyone))


def test_one_instance_a_home(settings: Settings, service: Callable[..., Service]) -> None:
    one = service(_python(SLEEP))
    one.start(lambda: None)
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        service(_python(SLEEP)).start(lambda: None)
    assert running_instance(settings) == (os.getpid(), "http://127.0.0.1:8300")


def test_a_taken_port_is_named_with_the_setting(service: Callable[..., Service]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        one = service(_python(SLEEP, port=port, port_setting="UPDRAFT_PORT"))
        with pytest.raises(StartError, match=rf"port {port} .* UPDRAFT_PORT=\d+"):
            one.start(lambda: None)
    assert one.children[0].pid is None


def test_a_child_that_cannot_start_shows_its_log(service: Callable[..., Service]) -> None:
    one = service(_python("import sys; sys.exit('the disk is on fire')"))
    one.start(lambda: None)
    assert _wait(lambda: one.children[0].code is not None)
    with pytest.raises(StartError, match="the disk is on fire"):
        one.wait_ready(["program"])


def test_a_child_that_ends_is_started_again(service: Callable[..., Service]) -> None:
    one = service(_python(SLEEP))
    one.start(lambda: None)
    child = one.children[0]
    first = child.pid
    assert _wait(lambda: len(_family(first)) == 1)
    _family(first)[0].kill()
    assert _wait(lambda: child.code is not None)
    assert child.code == 128 + signal.SIGKILL
    one.supervise()
    assert child.not_before > 0
    child.not_before = 1e-9  # the pause has passed
    one.supervise()
    assert child.code is None
    assert (child.pid != first, child.restarts) == (True, 1)


@pytest.mark.parametrize("end", ["supervise", "stop"])
def test_a_killed_guard_leaves_nothing(service: Callable[..., Service], end: str) -> None:
    one = service(_python(SLEEP))
    one.start(lambda: None)
    child = one.children[0]
    assert _wait(lambda: len(_family(child.pid)) == 1)
    everyone = _family(child.pid)
    psutil.Process(child.pid).kill()
    assert _wait(lambda: child.code is not None)
    assert everyone[0].is_running()
    getattr(one, end)()
    assert _wait(lambda: not everyone[0].is_running())


def test_programs_of_each_mode(settings: Settings) -> None:
    assert [p.name for p in programs(settings)] == ["mlflow", "api", "relay", "worker"]
    full = settings.model_copy(update={"mode": "full"})
    assert [p.name for p in programs(full)] == ["api", "relay", "worker"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_up_serves_and_stops_cleanly(tmp_path: Path) -> None:
    """Seconds: it starts two interpreters and the API."""
    port = _free_port()
    env = {**os.environ, "UPDRAFT_HOME": str(tmp_path / "home"), "UPDRAFT_PORT": str(port)}
    up = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "up", "--only", "api", "--json"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert f'"url": "http://127.0.0.1:{port}"' in line, up.stderr and up.stderr.read()
        everyone = _family(up.pid)
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.live().service == "updraft"
            assert client.ready().status == "degraded"  # the API alone, with no relay
            job, _ = client.submit({"target": "demo", "recipe": "quick"})
            assert client.job(job.id) is client.job(job.id)
            live = client.stream(job.id)
            assert next(live).type == "job.queued"
            client.cancel(job.id)
            assert [event.type for event in live] == ["job.cancelled"]
        up.send_signal(signal.SIGTERM)
        _, err = up.communicate(timeout=20)
    finally:
        up.kill()
        up.wait()
    assert up.returncode == 0, err
    assert not any(p.is_running() for p in everyone)
