"""The shell steps of the pipelines under `deploy/ci`, run as a runner does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CI = Path(__file__).parents[1] / "deploy" / "ci"


def github_steps() -> list[dict[str, Any]]:
    """The steps of the composite action."""
    steps: list[dict[str, Any]] = yaml.safe_load((CI / "github" / "action.yml").read_text())[
        "runs"
    ]["steps"]
    return steps


def gitlab_job() -> dict[str, Any]:
    """The template's job."""
    template = yaml.safe_load((CI / "gitlab" / "updraft-attach.yml").read_text())
    job: dict[str, Any] = template[".updraft-attach"]
    return job


def shell(
    base: Mapping[str, str], folder: Path, script: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a step in bash, with `updraft` on the PATH."""
    updraft = folder / "bin" / "updraft"
    updraft.parent.mkdir(parents=True, exist_ok=True)
    updraft.write_text(f'#!/bin/sh\nexec {sys.executable} -m api.cli "$@"\n')
    updraft.chmod(0o755)
    path = f"{updraft.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**base, "PATH": path, "PACKAGE": "none-such", **variables}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        env=env, cwd=folder, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
