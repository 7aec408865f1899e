"""A checkpoint's fingerprint, and the distance between two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.attach.fingerprint import Fingerprint, distance, fingerprint
from eagle3.cli import main
from eagle3.errors import BadInput
from tests.tiny import build_random_target


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_target(tmp_path_factory.mktemp("base") / "target")


def perturbed(base: Path, folder: Path, share: float) -> Path:
    """A copy whose every weight matrix is moved by this share of its norm."""
    shutil.copytree(base, folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for tensor in tensors.values():
        noise = torch.randn(tensor.shape, generator=generator)
        tensor += noise * share * tensor.norm() / noise.norm()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_the_same_checkpoint_is_at_no_distance(base: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    one, other = fingerprint(base), fingerprint(copy)
    assert one == other
    assert distance(one, other) == 0.0
    assert one.architecture == "LlamaForCausalLM"
    assert one.hidden_size == 64


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_distance_is_the_share_that_weights_moved_by(
    base: Path, tmp_path: Path, share: float
) -> None:
    apart = distance(fingerprint(base), fingerprint(perturbed(base, tmp_path / "new", share)))
    assert apart == pytest.approx(share, rel=0.15)


def test_unrelated_weights_are_far_apart(base: Path, tmp_path: Path) -> None:
    apart = distance(fingerprint(base), fingerprint(build_random_target(tmp_path / "o", seed=7)))
    assert apart is not None
    assert apart > 0.9


def test_other_shapes_cannot_be_compared(base: Path) -> None:
    one = fingerprint(base)
    other = one.model_copy(update={"weights_sha256": "x", "samples": {"another": ""}})
    assert distance(one, other) is None


def test_tokenizer_and_template_are_told_apart(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    shutil.copytree(base, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = folder / "chat_template.jinja"
    if template.is_file():
        template.write_text(template.read_text() + " ")
    else:
        config["chat_template"] += " "
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    one, other = fingerprint(base), fingerprint(folder)
    assert one.template_sha256 != other.template_sha256
    assert one.weights_sha256 == other.weights_sha256


def test_it_is_read_back(base: Path, tmp_path: Path) -> None:
    one = fingerprint(base)
    path = tmp_path / "fingerprint.json"
    path.write_text(one.model_dump_json())
    assert Fingerprint.read(path) == one
    path.write_text("{}")
    with pytest.raises(BadInput, match="is no fingerprint"):
        Fingerprint.read(path)


def test_the_command(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = perturbed(base, tmp_path / "new", 0.1)
    with pytest.raises(SystemExit) as left:
        main(["fingerprint", str(other), "--against", str(base)])
    assert not left.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["distance"] == pytest.approx(0.1, rel=0.15)
    assert found["num_layers"] == 8
