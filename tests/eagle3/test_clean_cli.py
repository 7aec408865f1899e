"""`eagle3 clean`: features of former configs go; those of the present one only when asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.clean_cli import clean
from eagle3.cli import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    for digest in ("former", "present"):
        folder = tmp_path / "stages" / "extract" / digest
        folder.mkdir(parents=True)
        (folder / "shard-00000.safetensors").write_bytes(b"x" * 1000)
        (folder / "index.json").write_text(json.dumps({"shards": []}))
        (folder / "manifest.json").write_text("{}")
    (tmp_path / "stages" / "extract" / "current").write_text("present")
    return tmp_path


def left(run: Path) -> set[str]:
    stages = run / "stages" / "extract"
    return {p.relative_to(stages).as_posix() for p in stages.rglob("*.*")}


def test_features_of_former_configs_go(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = left(run)
    with pytest.raises(SystemExit, match="0"):
        main(["clean", str(run), "--dry-run"])
    assert left(run) == before
    assert "would be freed" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["clean", str(run)])
    assert left(run) == {f"present/{name}" for name in
                         ("shard-00000.safetensors", "index.json", "manifest.json")}  # fmt: skip
    assert "0.000 GB  freed" in capsys.readouterr().out


def test_all_features_go_and_what_they_led_to_stays(run: Path) -> None:
    freed = clean(run, everything=True)
    assert freed[run / "stages" / "extract" / "present" / "shard-00000.safetensors"] == 1000
    assert left(run) == {"present/index.json", "present/manifest.json"}
    assert clean(run, everything=True) == {}


def test_what_is_no_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["clean", str(tmp_path)])
    assert "has no config.json" in capsys.readouterr().err
