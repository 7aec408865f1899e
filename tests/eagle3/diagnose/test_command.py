"""`eagle3 diagnose` on directories: what it reads, prints, writes and exits with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from eagle3.cli import main
from tests.eagle3.engines.checkpoints import Checkpoint, build
from tests.tiny import write_prompts

WORDS = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
"""A chat template that adds nothing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    made = build(tmp_path_factory.mktemp("golden"))
    _speak(made.target, WORDS)
    return made


def _speak(folder: Path, template: str) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))


@pytest.fixture
def prompts(made: Checkpoint, tmp_path: Path) -> Path:
    texts = (" ".join(f"t{i}" for i in made.order[at : at + 4]) for at in range(4))
    return write_prompts(tmp_path / "prompts.jsonl", [{"prompt": text} for text in texts])


def diagnose(
    made: Checkpoint, draft: Path, prompts: Path, *more: str
) -> tuple[int, dict[str, Any]]:
    out = prompts.parent / "diagnosis.json"
    words = [str(made.target), str(draft), "--prompts", str(prompts), "--heldout", str(prompts)]
    words += ["--max-new-tokens", "8", "--json", str(out), *more]
    with pytest.raises(SystemExit) as left:
        main(["diagnose", *words])
    return int(left.value.code or 0), json.loads(out.read_text()) if out.is_file() else {}


def copied(made: Checkpoint, folder: Path) -> Path:
    shutil.copytree(made.draft, folder)
    return folder


def test_a_healthy_draft(
    made: Checkpoint, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = diagnose(made, made.draft, prompts)
    assert code == 0
    assert found["verdict"] == "nothing wrong"
    assert "Nothing wrong" in capsys.readouterr().out


def test_absolute_ids_in_d2t(made: Checkpoint, prompts: Path, tmp_path: Path) -> None:
    draft = copied(made, tmp_path / "draft")
    tensors = load_file(draft / "model.safetensors")
    count = tensors["d2t"].new_ones(len(tensors["d2t"])).cumsum(0) - 1
    save_file(tensors | {"d2t": tensors["d2t"] + count}, draft / "model.safetensors")
    code, found = diagnose(made, draft, prompts)
    assert code == 1
    assert found["causes"] == ["d2t semantics"]
    assert {row["cause"] for row in found["rows"]} >= {"captured layers", "RoPE", "d2t semantics"}


def test_the_template_of_the_draft_is_tried(
    made: Checkpoint, prompts: Path, tmp_path: Path
) -> None:
    """The target's template now ends each prompt in words that the draft cannot say."""
    target = tmp_path / "target"
    shutil.copytree(made.target, target)
    outside = " ".join(f"t{i}" for i in made.order[-12:-9])
    draft = copied(made, tmp_path / "draft")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made.target / name, draft / name)
    _speak(target, WORDS + outside)
    there = Checkpoint(target, draft, made.order, made.certainty)
    code, found = diagnose(there, draft, prompts)
    assert code == 1
    assert "template" in found["causes"][0], found["said"]


def test_a_target_of_other_sizes(made: Checkpoint, prompts: Path, tmp_path: Path) -> None:
    draft = copied(made, tmp_path / "draft")
    raw = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(raw | {"hidden_size": 96}))
    code, found = diagnose(made, draft, prompts)
    assert code == 1
    assert found["causes"] == ["wrong target or revision"]
    assert "hidden size 96" in found["said"]


def test_our_engine_does_what_the_files_say(made: Checkpoint, prompts: Path) -> None:
    code, found = diagnose(made, made.draft, prompts, "--engine", "native")
    assert code == 0
    [sign] = [sign for sign in found["signs"] if sign["cause"] == "engine"]
    assert sign["text"].endswith("as the files lead to")


def test_an_engine_that_refuses_the_draft(made: Checkpoint, prompts: Path, tmp_path: Path) -> None:
    draft = copied(made, tmp_path / "draft")
    tensors = load_file(draft / "model.safetensors")
    del tensors["midlayer.hidden_norm.weight"]
    save_file(tensors, draft / "model.safetensors")
    code, found = diagnose(made, draft, prompts, "--engine", "native")
    assert code == 1
    assert found["causes"] == ["missing tensors"]
    assert any("does not serve" in sign["text"] for sign in found["signs"])


def test_what_is_not_there(
    made: Checkpoint, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = prompts.parent / "gone"
    nowhere = Checkpoint(gone, made.draft, made.order, made.certainty)
    for pair, draft, asked in (
        (nowhere, made.draft, prompts),
        (made, gone, prompts),
        (made, made.draft, gone),
    ):
        assert diagnose(pair, draft, asked)[0] == 2
        assert str(gone) in capsys.readouterr().err


def test_a_file_that_is_no_checkpoint(
    made: Checkpoint, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = copied(made, tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(b"PK")
    code, _ = diagnose(made, draft, prompts)
    assert code == 2
    assert "cannot be read" in capsys.readouterr().err
