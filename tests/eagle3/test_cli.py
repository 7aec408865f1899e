"""`eagle3` as a user meets it when something is wrong: one message, an exit code, no traceback."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3 import cli


def eagle3(*args: object) -> Any:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(arg) for arg in args])
    return ended.value.code


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no keys"),
        ("- a\n", "has no keys"),
        ("a: [\n", "is not YAML"),
        ("name: a\ntrain: {epoch: 3}\n", "train.epoch: Extra inputs are not permitted"),
    ],
)
def test_a_recipe_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text)
    assert eagle3("init", tmp_path / "run", "--target", "demo", "--recipe", recipe) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command", [("init", "--target", "demo"), ("resolve",), ("run",), ("report",)]
)
def test_a_run_directory_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert eagle3(command[0], file, *command[1:]) == 2
    assert capsys.readouterr().err.startswith(f"eagle3 {command[0].replace('run', 'resolve')}: ")
    assert file.read_text() == "mine"


def test_a_run_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert eagle3("resolve", tmp_path / "typo") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_report_before_any_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eagle3("init", tmp_path / "run", "--target", "demo")
    assert eagle3("report", tmp_path / "run") == 2
    assert "no stage has run" in capsys.readouterr().err


def test_a_config_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    assert eagle3("resolve", tmp_path) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["reason"] == "bad_input"
    assert "is not text" in error["message"]


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full", 4),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "disk_full", 4),
        (MemoryError(), "out_of_memory", 1),
        (RuntimeError("CUDA out of memory"), "out_of_memory", 1),
        (RuntimeError("else"), "internal", 1),
    ],
)
def test_what_a_failure_is_called(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
    code: int,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "run_stage", fail)
    assert eagle3("resolve", tmp_path) == code
    assert json.loads(capsys.readouterr().out)["reason"] == reason


def test_init_does_not_replace_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eagle3("init", tmp_path, "--target", "demo") == 0
    assert eagle3("init", tmp_path, "--target", "demo") == 0
    assert eagle3("init", tmp_path, "--target", "org/name") == 2
    assert "--force" in capsys.readouterr().err
    assert json.loads((tmp_path / "config.json").read_text())["target"] == "demo"
    assert eagle3("init", tmp_path, "--target", "org/name", "--force") == 0
