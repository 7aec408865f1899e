"""The arrows, at run time: what a process has really loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys, {module}
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{
    "torch", "transformers", "tokenizers", "safetensors", "datasets", "workers", "eagle3"}}))
print(*sorted(name for name in sys.modules if name.startswith("eagle3.")))
"""


def _loaded(module: str) -> tuple[set[str], set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
    )
    heavy, ours = done.stdout.split("\n")[:2]
    return set(heavy.split()), set(ours.split())


@pytest.mark.parametrize("module", ["api.app", "api.cli", "workers.app"])
def test_no_torch_in_the_services(module: str) -> None:
    heavy, ours = _loaded(module)
    assert heavy <= {"eagle3", "workers"}
    rooms = {".".join(name.split(".")[:2]) for name in ours}
    assert rooms <= {"eagle3.config", "eagle3.plan", "eagle3.fit"}
    if module.startswith("api"):
        assert "workers" not in heavy


def test_what_is_loaded_is_no_work_for_the_garbage_collector(tmp_path: Path) -> None:
    code = "import gc, api.app; app = api.app.serve(); print(gc.get_freeze_count())"
    env = {k: v for k, v in os.environ.items() if not k.startswith("UPDRAFT_")}
    env |= {"UPDRAFT_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert int(done.stdout) > 10_000
