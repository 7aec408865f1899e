"""Drafts and targets that no engine gets: each would load them, and draft badly or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3 import vocab
from eagle3.engines.engine import Settings
from eagle3.engines.llamacpp import LlamaCpp
from eagle3.engines.native import Native
from eagle3.errors import BadInput
from tests.eagle3.engines.checkpoints import Checkpoint, build

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"))


def _missing(tensors: Tensors) -> None:
    del tensors["fc.weight"]


def _extra(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = torch.ones(2)


def _transposed(tensors: Tensors) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].T.contiguous()


def _absolute(tensors: Tensors) -> None:
    tensors["d2t"] = vocab.kept_ids(tensors["d2t"])


@pytest.mark.parametrize("engine", [Native(), LlamaCpp()], ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing, "fc.weight is missing"),
        (_extra, r"model.norm.weight is not part of the layout"),
        (_transposed, r"fc.weight is \(192, 64\), expected \(64, 192\)"),
        (_absolute, "d2t points outside the target vocabulary|is it offsets, as it must be"),
    ],
)
def test_a_draft_that_engines_accept_without_a_word(
    engine: Native | LlamaCpp,
    spoil: Callable[[Tensors], None],
    said: str,
    golden: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eagle3.engines.llamacpp._target_file", lambda *_: tmp_path)
    draft = shutil.copytree(golden.draft, tmp_path / "draft")
    tensors = load_file(draft / "model.safetensors")
    spoil(tensors)
    save_file(tensors, draft / "model.safetensors")
    with pytest.raises(BadInput, match=said):
        engine.start(golden.target, draft, Settings(), tmp_path)


def test_a_draft_of_another_target(golden: Checkpoint, tmp_path: Path) -> None:
    target = shutil.copytree(golden.target, tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    with pytest.raises(BadInput, match=r"vocabulary 48 where this target .* 50"):
        Native().start(target, golden.draft, Settings(), tmp_path)


@pytest.mark.parametrize("engine", [Native(), LlamaCpp()], ids=lambda engine: engine.name)
def test_a_target_that_is_not_supported(engine: Native | LlamaCpp, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "of_next_year"}')
    with pytest.raises(BadInput, match=r"of_next_year|is no target"):
        engine.start(tmp_path, None, Settings(), tmp_path / "work")


def test_a_directory_without_a_draft(golden: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config\.json does not exist"):
        Native().start(golden.target, tmp_path / "none", Settings(), tmp_path)
