"""The arrows, at run time: what a process has really loaded."""

from __future__ import annotations

import subprocess
import sys

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
