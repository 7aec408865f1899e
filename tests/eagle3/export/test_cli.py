"""`eagle3 export … --format` and `eagle3 import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3 import cli
from eagle3.config import RunConfig, load_recipe
from eagle3.export import official
from eagle3.run import write_json
from tests.eagle3.export.pair import CAPTURE, LAYERS, Pair, make
from tests.eagle3.export.test_imported import rewrite, specforge


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make(tmp_path)


@pytest.fixture
def run(tmp_path: Path, pair: Pair) -> Path:
    """A run whose stages `resolve` and `export` have ended."""
    run = tmp_path / "run"
    run.mkdir()
    config = RunConfig(target="org/name@main", recipe=load_recipe("quick"))
    write_json(run / "config.json", config.model_dump(mode="json"))
    for stage in ("resolve", "export"):
        folder = run / "stages" / stage / "digest"
        folder.mkdir(parents=True)
        write_json(folder / "manifest.json", {})
        (folder.parent / "current").write_text("digest")
    write_json(run / "stages" / "resolve" / "digest" / "local.json", {"path": str(pair.target)})
    official.write(pair.stored, run / "stages" / "export" / "digest" / "draft", LAYERS, FLOAT)
    return run


FLOAT = torch.float32


def eagle3(*words: object) -> Any:
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    return left.value.code


def test_a_draft_is_written_for_llama_cpp(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = (pair.draft, "--format", "gguf", "--target", pair.target, "--out", out)
    assert eagle3("export", *words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == str(out / "draft.gguf")
    assert (out / "draft.gguf").is_file()
    assert said["for"] == ["llamacpp"]


def test_a_run_knows_its_target_and_what_a_hub_calls_it(run: Path, tmp_path: Path) -> None:
    assert eagle3("export", run, "--format", "speculators", "--out", tmp_path / "out") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/name"


def test_without_a_format_it_is_the_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eagle3("export", tmp_path / "none") == 2
    assert "make one with: eagle3 init" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--format", "gguf", "--engine", "vllm", "--out", "out"], "vllm does not load gguf"),
        (["--format", "gguf"], "--format without --out"),
        (["--format", "gguf", "--out", "out"], "of which target"),
        (["--format", "gguf", "--out", "out", "--target", "none"], "none has no config.json"),
        (["--format", "gguf", "--out", "draft"], "draft is in use"),
    ],
)
def test_what_is_refused(
    pair: Pair,
    words: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(pair.draft.parent)
    assert eagle3("export", pair.draft, *words) == 2
    assert why in capsys.readouterr().err


def test_a_directory_that_is_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eagle3("export", tmp_path, "--format", "gguf", "--out", tmp_path / "out") == 2
    assert "neither a run nor a draft" in capsys.readouterr().err


def test_a_draft_with_a_flag_is_not_exported(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(pair.draft, lambda config, _: config.update(norm_output=True))
    words = (pair.draft, "--format", "gguf", "--target", pair.target, "--out", tmp_path / "out")
    assert eagle3("export", *words) == 2
    assert "norm_output is True" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_tools_draft_becomes_one_of_ours(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pair.stored
    rewrite(pair.draft, specforge)
    assert eagle3("import", pair.draft, "--target", pair.target, "--out", tmp_path / "out") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["from"], said["capture_layers"]) == ("specforge", list(CAPTURE))
    assert official.read(tmp_path / "out").config == before.config


def test_layers_that_are_named_count(pair: Pair, tmp_path: Path) -> None:
    rewrite(pair.draft, specforge)
    words = ("--target", pair.target, "--out", tmp_path / "out", "--layers", 3, 5, 8)
    assert eagle3("import", pair.draft, *words) == 0
    assert official.read_config(tmp_path / "out").capture_layers == (3, 5, 8)
