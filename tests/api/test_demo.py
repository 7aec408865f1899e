"""`updraft demo` with every real process; only the stages are a stand-in."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from api.cli.console import Exit
from api.client import Client, ClientError
from api.schemas import JobView
from tests.api.test_embedded import _family, _free_port, _wait

pytestmark = pytest.mark.e2e
FAKE = Path(__file__).parents[1] / "workers" / "fake_eagle3.py"


class Demo:
    """Calls of the command that share a home."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.client = Client(f"http://127.0.0.1:{self.port}", timeout_s=5)
        stages = [sys.executable, "-I", "-S", str(FAKE), "waits@train"]
        self.env = {
            **os.environ,
            "UPDRAFT_HOME": str(folder / "home"),
            "UPDRAFT_PORT": str(self.port),
            "UPDRAFT_MLFLOW_PORT": str(_free_port()),
            "UPDRAFT_STAGE_COMMAND": json.dumps(stages),
        }

    @contextmanager
    def run(self) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "demo", "--profile", "quick"],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def job(self) -> JobView | None:
        """The one job, once the service answers."""
        try:
            found = self.client.jobs().data
        except ClientError:
            return None
        assert len(found) <= 1
        return found[0] if found else None

    def in_training(self) -> bool:
        job = self.job()
        progress = (
            next((s.progress for s in job.stages if s.name == "train"), None) if job else None
        )
        return progress is not None and progress.done >= 3


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    with demo.client:
        yield demo


@pytest.mark.timeout(540)
def test_an_interrupted_demo_goes_on_at_the_next_call(demo: Demo, tmp_path: Path) -> None:
    with demo.run() as first:
        assert _wait(demo.in_training, 120), first.poll()
        job, everyone = demo.job(), _family(first.pid)
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=120)
    assert first.returncode == Exit.INTERRUPTED, err
    assert "goes on with it" in err
    assert _gone(everyone)
    assert job is not None

    with demo.run() as second:
        out, err = second.communicate(timeout=270)
    assert second.returncode == Exit.OK, err
    # The stand-in's stages take no time: the service may have done them before the command asks.
    assert re.search(rf"{job.id} (goes on|was done before)", err)
    assert "MLflow: eagle3--demo version 1, alias champion" in err
    assert (tmp_path / "home/reports" / job.id / "report.html").is_file()
    assert f"updraft serve {job.id} --engine llamacpp" in out
    assert not (tmp_path / "home/instance.json").exists()


def _gone(processes: list[psutil.Process]) -> bool:
    return _wait(lambda: not any(p.is_running() for p in processes), 5)
