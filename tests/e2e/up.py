"""`updraft up` and the other commands as a person runs them: real processes in a home of their own.

The tiny job they get is the real one: every stage, a permutation target that a draft can learn.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from api.client import TERMINAL, Client
from api.schemas import EventView, JobView
from tests.processes import alive
from tests.servers import free_port, wait_until
from tests.tiny import Tiny, build_permutation_target, write_prompts

PATIENCE_S = 900.0
"""How long a whole job may take on a machine that does other things too; a quiet one needs one."""

RECIPE: dict[str, Any] = {
    "regenerate": {"max_new_tokens": 24, "batch_size": 16},
    "extract": {"shard_tokens": 1024},
    "train": {
        "ttt_steps": 3,
        "draft_vocab_size": 64,
        "learning_rate": 5e-3,
        "epochs": 6,
        "batch_tokens": 128,
        "max_length": 64,
        "eval_every": 10,
        "eval_samples": 4,
        "checkpoint_every": 5,
    },
    "parity": {"prompts": 4, "max_new_tokens": 24},
    "benchmark": {"prompts": 4, "max_new_tokens": 24, "threads": 1},
    "prove": {"prompts": 4, "max_new_tokens": 24},
}
"""60 optimiser steps; the draft reaches an acceptance length of about 3.6 of 4."""


class Inputs:
    """A target and a prompt file on disk."""

    def __init__(self, folder: Path) -> None:
        self.target: Tiny = build_permutation_target(folder / "tiny-target")
        self.prompts = write_prompts(folder / "prompts.jsonl", self.target.prompts(48))

    def spec(self, *, epochs: float = 6, **changes: Any) -> dict[str, Any]:
        """A job on them."""
        train = {**RECIPE["train"], "epochs": epochs}
        return {
            "target": f"file://{self.target.path}",
            "recipe": "quick",
            "engines": ["native", "llamacpp"],
            "overrides": {**RECIPE, "train": train},
            "prompts": {"source": str(self.prompts), "heldout": 8},
            **changes,
        }


class Up:
    """One `updraft up`, its clients and its processes."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.home = folder, folder / "home"
        port, mlflow_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.mlflow_url = f"http://127.0.0.1:{mlflow_port}"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("UPDRAFT_")},
            "OMP_NUM_THREADS": "1",
            "UPDRAFT_HOME": str(self.home),
            "UPDRAFT_CACHE": str(folder / "cache"),
            "UPDRAFT_ENGINES": str(folder / "engines"),
            "UPDRAFT_PORT": str(port),
            "UPDRAFT_MLFLOW_PORT": str(mlflow_port),
            **{f"UPDRAFT_{name.upper()}": value for name, value in settings.items()},
        }
        self.client = Client(self.url, timeout_s=60)
        self._process: subprocess.Popen[str] | None = None

    def use_key(self, key: str) -> None:
        """Give this API key with every request and command from now on."""
        self.client.close()
        self.client = Client(self.url, api_key=key, timeout_s=60)
        self.env["UPDRAFT_API_KEY"] = key

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an `updraft` command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "api.cli", *words],
            env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip

    @contextmanager
    def serve(self, *words: str) -> Iterator[list[str]]:
        """`updraft serve` for the time of the block, as its curl line; Ctrl-C ends all of it."""
        with subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", *words],
            env=self.env, cwd=self.folder, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                line = next((line for line in process.stdout if line.startswith("curl")), "")
                assert line, "it ended before it answered"
                yield shlex.split(line)
                everyone = psutil.Process(process.pid).children(recursive=True)
                assert everyone
                process.send_signal(signal.SIGINT)
                code = process.wait(120)
            finally:
                process.kill()
        assert code == 0
        assert not alive(everyone)

    def start(self) -> None:
        """Start everything, and return when all of it answers."""
        with (self.folder / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api.cli", "up", "--json"],
                env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.folder / "up.log").read_text()
        assert json.loads(line)["url"] == self.url

    def stop(self) -> None:
        """Ctrl-C; nothing that it started may be left."""
        assert self._process is not None
        assert self._process.poll() is None, "it ended before it was told to"
        everyone = self.processes()
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=180)
        assert self._process.returncode == 0, (self.folder / "up.log").read_text()
        left = alive((*everyone, *self.named_processes()))
        assert not left

    def close(self) -> None:
        """Whatever happened, leave nothing running."""
        self.client.close()
        if self._process is None:
            return
        everyone = self.processes() if self._process.poll() is None else []
        self._process.kill()
        self._process.communicate()
        for process in everyone:
            if process.is_running():
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """All that `up` has started, at any depth."""
        assert self._process is not None
        found: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
        return found

    def named_processes(self, *words: str) -> list[psutil.Process]:
        """Processes of the machine whose command line names this home and these words."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if any(str(self.home) in word for word in line) and set(words) <= set(line):
                found.append(process)
        return found

    def celery(self) -> psutil.Process:
        """The worker itself, not the guard that runs it."""
        found = [
            p
            for p in self.processes()
            if "celery" in p.cmdline() and "api.guard" not in p.cmdline()
        ]
        assert len(found) == 1, found
        return found[0]

    def submit(self, spec: dict[str, Any], key: str | None = None) -> JobView:
        return self.client.submit(spec, idempotency_key=key)[0]

    def wait(self, job: JobView) -> JobView:
        """The job once it has ended."""
        wait_until(lambda: self.client.job(job.id).status in TERMINAL, PATIENCE_S, "the job ends")
        return self.client.job(job.id)

    def events(self, job: JobView) -> list[EventView]:
        """All events so far."""
        page = self.client.events(job.id, limit=1000)
        assert not page.has_more
        return page.data

    def stage_lines(self, job: JobView, stage: str, kind: str) -> list[dict[str, Any]]:
        """What a stage's process has said of one kind, as its log on this machine has it."""
        path = self.home / "runs" / job.id / "logs" / f"{stage}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def mirrored(self, draft_id: str) -> None:
        """Wait until MLflow has the draft."""
        wait_until(
            lambda: self.client.draft(draft_id).mlflow_version, 300, "MLflow takes the draft"
        )


@contextmanager
def running(up: Up) -> Iterator[Up]:
    """The service for the time of the block, stopped cleanly at its end."""
    try:
        up.start()
        yield up
        up.stop()
    finally:
        up.close()
