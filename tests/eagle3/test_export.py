"""The common layout: complete, checked in both directions, and the same draft when read back."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.config import RunConfig, load_recipe
from eagle3.draft import Draft, DraftConfig
from eagle3.export import official
from eagle3.export.stage import export
from eagle3.run import Context, Stage, current, run_stage, write_json
from eagle3.target import Target
from eagle3.train.start import start_from_target
from tests.eagle3.train.random_draft import random_draft
from tests.tiny import build_random_target

LAYERS = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    official.save(random_draft(), tmp_path / "draft", LAYERS, torch.float32)
    return tmp_path / "draft"


def test_read_back_it_is_the_same_draft(folder: Path) -> None:
    draft = random_draft()
    found = official.load(folder, draft.embed_VH)
    assert found.config == draft.config
    for name, tensor in draft.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    assert set(load_file(folder / "model.safetensors")) == set(official.tensor_shapes(draft.config))


@pytest.mark.parametrize("name", ["fc.weight", "d2t", "midlayer.hidden_norm.weight"])
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} is missing"):
        official.load(folder, random_draft().embed_VH)


def test_a_wrong_shape_and_a_stranger_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["norm.weight"] = torch.ones(3)
    tensors["model.norm.weight"] = torch.ones(16)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.norm\.weight is not part .*norm\.weight is \(3,\)"
    ):
        official.load(folder, random_draft().embed_VH)


def test_absolute_ids_in_d2t_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="d2t"):
        official.load(folder, random_draft().embed_VH)


def test_layers_are_named_only_where_engines_would_assume_others() -> None:
    config = random_draft().config  # captures 2, 4, 5
    assert official.LAYER_KEY in official.config_json(config, torch.float32, LAYERS)
    assert official.LAYER_KEY not in official.config_json(config, torch.float32, 8)


def test_the_stage_writes_what_was_trained(tmp_path: Path) -> None:
    write_json(
        tmp_path / "config.json",
        RunConfig(target="demo", recipe=load_recipe("quick")).model_dump(mode="json"),
    )
    path = build_random_target(tmp_path / "target")
    target = Target.load(path)
    config = DraftConfig.for_target(target.config, target.capture_layers, 40)
    draft = Draft(config, target.embed.weight.detach())
    draft.set_vocab(torch.arange(3, 43))
    start_from_target(draft, target.head_weight())

    def resolve(ctx: Context) -> None:
        write_json(ctx.out / "local.json", {"path": str(path)})
        names = ("weights", "tokenizer", "template", "config")
        write_json(
            ctx.out / "target.json",
            {
                "dtype": "float32",
                "architecture": "LlamaForCausalLM",
                "model_type": "llama",
                "num_layers": target.num_layers,
                "hidden_size": target.hidden_size,
                "vocab_size": target.vocab_size,
                "parameters": 1000,
                **{f"{name}_sha256": "0" * 64 for name in names},
            },
        )

    def train(ctx: Context) -> None:
        official.save(draft, ctx.out / "draft", target.num_layers, torch.float32)

    run_stage(Stage("resolve", (), lambda c: 0, resolve), tmp_path, io.StringIO())
    run_stage(Stage("train", ("resolve",), lambda c: 0, train), tmp_path, io.StringIO())
    stage = Stage("export", ("resolve", "train"), lambda c: 0, export)
    summary = run_stage(stage, tmp_path, io.StringIO())["summary"]
    exported = current(tmp_path, "export") / "draft"
    assert set(summary["files"]) == {"config.json", "model.safetensors"}
    assert json.loads((exported / "config.json").read_text())["draft_vocab_size"] == 40
    found = official.load(exported, target.embed.weight.detach())
    assert torch.equal(found.lm_head.weight, draft.lm_head.weight)
