"""The pipelines' shell steps against a live API and worker, whose stages are stand-ins."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from api.app import create_app
from tests.pipeline import github_steps, gitlab_job, shell
from tests.servers import free_port
from tests.workers.conftest import MakeRuntime, submit
from workers.runtime import Runtime
from workers.stage import drain

POLICY = "recipe: quick\nattach: {probe: {prompts: 4}}\n"


@contextmanager
def service(rt: Runtime) -> Iterator[str]:
    """An API on a port of its own, and a worker that takes what comes. Gives the URL."""
    port = free_port()
    config = uvicorn.Config(create_app(rt.settings), host="127.0.0.1", port=port, log_config=None)
    server = uvicorn.Server(config)

    def work() -> None:
        while not rt.stop.is_set():
            drain(rt)
            time.sleep(0.05)

    threads = [threading.Thread(target=server.run), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        rt.stop.set()
        for thread in threads:
            thread.join()


def variables(url: str, folder: Path) -> dict[str, str]:
    (folder / "policy.yaml").write_text(POLICY)
    return {
        "UPDRAFT_URL": url,
        "UPDRAFT_HOME": str(folder / "none"),
        "TARGET": "demo",
        "POLICY": "policy.yaml",
        "KEY": "attach-acme-4f2a91",
        "TIMEOUT": "600",
        "GITHUB_OUTPUT": str(folder / "outputs"),
        "GITHUB_STEP_SUMMARY": str(folder / "page"),
    }


@pytest.mark.slow
def test_the_github_action_says_that_a_draft_is_reused(
    make_runtime: MakeRuntime, tmp_path: Path
) -> None:
    first = make_runtime()
    submit(first)
    drain(first)
    with service(make_runtime("moved@resolve")) as url:
        for step in github_steps():
            done = shell(os.environ, tmp_path, step["run"], **variables(url, tmp_path))
            assert done.returncode == 0, done.stderr
    told = dict(line.split("=", 1) for line in (tmp_path / "outputs").read_text().splitlines())
    assert (told["exit-code"], told["status"]) == ("10", "attached_by_reuse")
    found = json.loads((tmp_path / "updraft.json").read_text())
    assert told["draft"] == found["draft"]["id"]
    assert "Reused as it is" in (tmp_path / "page").read_text()
    assert (tmp_path / "updraft-junit.xml").is_file()


@pytest.mark.slow
def test_the_gitlab_template_ends_with_the_code(make_runtime: MakeRuntime, tmp_path: Path) -> None:
    job = gitlab_job()
    script = "\n".join([*job["before_script"], *job["script"]])
    with service(make_runtime("bad_input@resolve")) as url:
        done = shell(os.environ, tmp_path, script, **variables(url, tmp_path))
    assert done.returncode == 30, done.stderr
    assert "no draft can be attached" in done.stdout
    assert set(job["artifacts"]["paths"]) <= {p.name for p in tmp_path.iterdir()}
    assert job["artifacts"]["reports"]["junit"] in job["artifacts"]["paths"]
