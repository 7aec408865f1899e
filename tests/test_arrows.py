"""The arrows between the packages: they hold, and each contract breaks when it should."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = ROOT / ".importlinter"
PACKAGES = ("api", "workers", "jobs", "eagle3", "migrations")
MODULES = ("eagle3.config", "eagle3.plan", "eagle3.draft", "eagle3.report")


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_arrows_hold() -> None:
    found = _lint(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Packages of our names, empty but for `eagle3.draft`, under the contracts of the real ones."""
    shutil.copy(CONTRACTS, tmp_path)
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in MODULES:
        (tmp_path / module.replace(".", "/")).with_suffix(".py").touch()
    (tmp_path / "eagle3" / "draft.py").write_text("import torch\n")
    return tmp_path


def test_the_doors_are_open(house: Path) -> None:
    for package in ("api", "workers", "jobs"):
        (house / package / "guest.py").write_text("import eagle3.config, eagle3.plan\n")
    (house / "api" / "page.py").write_text("import jobs.guest, fastapi\n")
    (house / "workers" / "task.py").write_text("import jobs.guest, celery\n")
    (house / "migrations" / "env.py").write_text("import jobs.guest, sqlalchemy\n")
    found = _lint(house)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("package", "module", "contract"),
    [
        ("eagle3", "jobs", "eagle3 knows nothing"),
        ("eagle3", "mlflow", "eagle3 knows nothing"),
        ("jobs", "celery", "jobs needs no tensors"),
        ("jobs", "eagle3.draft", "jobs needs no tensors"),
        ("jobs", "workers", "jobs needs no tensors"),
        ("workers", "api", "workers run a stage"),
        ("workers", "eagle3.draft", "workers run a stage"),
        ("workers", "transformers", "workers run a stage"),
        ("api", "workers", "api needs jobs"),
        ("api", "eagle3.report", "api needs jobs"),
        ("api", "torch", "api needs jobs"),
        ("migrations", "api", "migrations see"),
    ],
)
def test_a_wrong_import_is_named(house: Path, package: str, module: str, contract: str) -> None:
    (house / package / "intruder.py").write_text(f"import {module}\n")
    found = _lint(house)
    assert found.returncode == 1
    assert any(
        line.startswith(contract) and line.endswith("BROKEN") for line in found.stdout.splitlines()
    ), found.stdout
    assert f"{package}.intruder -> {module}" in found.stdout


def test_torch_behind_a_door_is_found(house: Path) -> None:
    (house / "api" / "page.py").write_text("import jobs.spec\n")
    (house / "jobs" / "spec.py").write_text("import eagle3.plan\n")
    (house / "eagle3" / "plan.py").write_text("import eagle3.draft\n")
    found = _lint(house)
    assert found.returncode == 1
    assert "eagle3.plan -> eagle3.draft" in found.stdout
