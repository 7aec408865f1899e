"""Going on from an existing draft, or refusing it with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.data.offline import FeatureStore
from eagle3.errors import BadInput
from eagle3.run import current
from eagle3.target import Target
from eagle3.train.warm import draft_content, warm_draft
from tests.eagle3.train.stage import change_recipe, run_train, weights


@pytest.fixture(scope="module")
def base(extracted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that was trained on the same features."""
    run_train(extracted, "base")
    folder = tmp_path_factory.mktemp("base") / "draft"
    shutil.copytree(current(extracted, "train") / "draft", folder)
    return folder


def history(run: Path) -> list[dict[str, float]]:
    lines = (current(run, "train") / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_it_keeps_vocabulary_and_sizes_and_starts_where_the_draft_was(
    extracted: Path, base: Path
) -> None:
    before = history(extracted)
    other = {"draft_vocab_size": 20, "intermediate_size": 8, "epochs": 1}
    change_recipe(extracted, start_from=str(base), learning_rate=1e-6, **other)
    try:
        _, printed = run_train(extracted, "warm")
    finally:
        own = {"draft_vocab_size": 48, "intermediate_size": None, "epochs": 4}
        change_recipe(extracted, start_from=None, learning_rate=5e-3, **own)
    assert "its draft vocabulary of 48" in printed
    there, here = load_file(base / "model.safetensors"), weights(extracted)
    assert torch.equal(there["d2t"], here["d2t"])
    assert {n: t.shape for n, t in there.items()} == {n: t.shape for n, t in here.items()}
    assert (base / "config.json").read_text() == (
        current(extracted, "train") / "draft" / "config.json"
    ).read_text()
    assert history(extracted)[0]["train/loss"] < 0.9 * before[0]["train/loss"]


def config_says(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))

    return change


def lacks(key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        del config[key]
        (folder / "config.json").write_text(json.dumps(config))

    return change


def without_fc(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, folder / "model.safetensors")


def absolute_map(folder: Path) -> None:
    """`d2t` as target ids, a common mistake, in place of offsets."""
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (config_says(hidden_size=32), "hidden size 32 where this target and its features have 64"),
        (config_says(vocab_size=99), "vocabulary 99 where"),
        (config_says(eagle_aux_hidden_state_layer_ids=[1, 3, 4]), r"captured layers \(1, 3, 4\)"),
        (config_says(intermediate_size=5), "midlayer.mlp.down_proj.weight is"),
        (lacks("rms_norm_eps"), "config.json lacks 'rms_norm_eps'"),
        (without_fc, "fc.weight is missing"),
        (absolute_map, "d2t"),
        (lambda folder: (folder / "model.safetensors").unlink(), "does not exist"),
        (lambda folder: (folder / "config.json").unlink(), "config.json does not exist"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 9), "cannot be read"),
        (shutil.rmtree, "is not a directory"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    extracted: Path, base: Path, tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(base, folder)
    spoil(folder)
    target = Target.load(extracted / "target", capture_layers=(2, 3, 4))
    with pytest.raises(BadInput, match=f"train.start_from: .*{reason}"):
        warm_draft(folder, target, FeatureStore.open(current(extracted, "extract")))


def test_a_draft_is_known_by_its_content(base: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(base, moved)
    assert draft_content(moved) == draft_content(base)
    config_says(pad_token_id=3)(moved)
    assert draft_content(moved) != draft_content(base)
    assert draft_content(tmp_path / "nowhere") == []
