"""Whatever the code imports, pyproject.toml declares: services in the base, tensors in `worker`."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"api", "workers", "jobs", "eagle3", "migrations", "tests", "benchmarks"}
ELSEWHERE = {"eagle3/engines/vllm_plugin.py", "eagle3/engines/openvino_server.py"}
"""Files that an engine's own environment runs, with what is installed there."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _names(requirements: list[str]) -> set[str]:
    names = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {_canonical(name[0]) for name in names if name}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


BASE = _names(PROJECT["dependencies"])
EXTRAS = {extra: _names(names) for extra, names in PROJECT["optional-dependencies"].items()}


def _imports(package: Path) -> Iterator[tuple[Path, str]]:
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield file, node.module.partition(".")[0]


@pytest.mark.parametrize(
    ("package", "declared"),
    [
        ("jobs", BASE | EXTRAS["otel"]),
        ("migrations", BASE),
        ("api", BASE),
        ("workers", BASE),
        ("eagle3", BASE | EXTRAS["worker"]),
        ("tests", BASE.union(*EXTRAS.values())),
    ],
)
def test_every_import_is_declared(package: str, declared: set[str]) -> None:
    distributions = importlib.metadata.packages_distributions()
    missing = {
        f"{file.relative_to(ROOT)}: {module}"
        for file, module in _imports(ROOT / package)
        if str(file.relative_to(ROOT)) not in ELSEWHERE
        and module not in OURS | set(sys.stdlib_module_names)
        and not {_canonical(name) for name in distributions.get(module, [module])} & declared
    }
    assert missing == set()


def test_constraints_pin_what_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {_canonical(line.partition("==")[0]) for line in lines if "==" in line}
    assert BASE.union(*EXTRAS.values()) - pinned == set()
