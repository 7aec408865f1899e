"""Drafts in the layouts of other tools: the same logits as what they were made of, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from eagle3.errors import BadInput
from eagle3.export import imported
from eagle3.export.flags import FLAGS
from eagle3.export.layers import LAYER_KEY, Layers
from tests.eagle3.export.pair import CAPTURE, DEFAULT, VOCAB, Pair, make

Config = dict[str, Any]
Tensors = dict[str, Tensor]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make(tmp_path)


def rewrite(draft: Path, change: Callable[[Config, Tensors], None]) -> Path:
    """Change a draft's files in place."""
    config = json.loads((draft / "config.json").read_text())
    tensors = load_file(draft / "model.safetensors")
    change(config, tensors)
    (draft / "config.json").write_text(json.dumps(config))
    save_file(tensors, draft / "model.safetensors")
    return draft


def strip(config: Config) -> None:
    """Leave out what only this package writes."""
    for key in (LAYER_KEY, "eagle_config", "num_target_layers", "num_aux_hidden_states"):
        config.pop(key, None)


def rename(tensors: Tensors, layer: str) -> None:
    for name in [n for n in tensors if n.startswith("midlayer.")]:
        tensors[name.replace("midlayer.", layer)] = tensors.pop(name)


def eagle(config: Config, tensors: Tensors) -> None:
    strip(config)
    config["architectures"] = ["LlamaForCausalLM"]
    del config["head_dim"]


def angelslim(config: Config, tensors: Tensors) -> None:
    strip(config)
    config["architectures"] = ["Eagle3LlamaForCausalLM"]
    config[LAYER_KEY] = list(CAPTURE)


def specforge(config: Config, tensors: Tensors) -> None:
    strip(config)
    config["eagle_config"] = {LAYER_KEY: [k - 1 for k in CAPTURE], "use_aux_hidden_state": True}


def modelopt(config: Config, tensors: Tensors) -> None:
    specforge(config, tensors)
    rename(tensors, "layers.0.")
    del tensors["t2d"]
    config["eagle_config"] |= {
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
    }
    config["rope_scaling"] = {"type": "yarn", "factor": 32.0}
    config["max_position_embeddings"] = 2048


def speculators(config: Config, tensors: Tensors) -> None:
    layer = dict(config)
    strip(layer)
    config.clear()
    config.update(
        {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": layer.pop("draft_vocab_size"),
            "norm_before_residual": False,
            LAYER_KEY: list(CAPTURE),
            "transformer_layer_config": layer,
        }
    )
    rename(tensors, "layers.0.")


@pytest.mark.parametrize("tool", [angelslim, specforge, speculators, modelopt])
def test_another_tools_draft_is_the_same_draft(pair: Pair, tool: Any) -> None:
    before = pair.stored
    found = imported.read(rewrite(pair.draft, tool), pair.target)
    assert found.tool == tool.__name__
    assert found.stored.config.capture_layers == CAPTURE
    assert found.stored.tensors.keys() == before.tensors.keys()
    for name, tensor in before.tensors.items():
        assert torch.equal(found.stored.tensors[name], tensor), name
    if tool is not modelopt:
        assert found.stored.config == before.config
        assert torch.equal(pair.logits(found.stored), pair.logits(before))


def test_the_official_layout_names_no_layers(tmp_path: Path) -> None:
    pair = make(tmp_path, DEFAULT)
    before = pair.stored
    found = imported.read(rewrite(pair.draft, eagle), pair.target)
    assert found.tool == "eagle"
    assert found.stored.config == before.config


def test_a_scaled_draft_keeps_its_rotary_positions_and_gets_the_targets_length(pair: Pair) -> None:
    config = imported.read(rewrite(pair.draft, modelopt), pair.target).stored.config
    assert config.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 2048,
    }
    assert config.max_position_embeddings == 128


def test_without_maps_the_whole_vocabulary_is_drafted(tmp_path: Path) -> None:
    pair = make(tmp_path, kept=VOCAB)
    before = pair.stored

    def whole(config: Config, tensors: Tensors) -> None:
        del config["draft_vocab_size"]

    found = imported.read(rewrite(pair.draft, whole), pair.target).stored
    assert torch.equal(found.tensors["t2d"], torch.ones(VOCAB, dtype=torch.bool))
    assert torch.equal(pair.logits(found), pair.logits(before))


def test_the_targets_embedding_is_dropped_and_another_refused(pair: Pair) -> None:
    model = LlamaForCausalLM(pair.config)
    model.save_pretrained(pair.target)
    embed_VH = model.model.embed_tokens.weight.detach().clone()

    def own(config: Config, tensors: Tensors) -> None:
        tensors["embed_tokens.weight"] = embed_VH

    found = imported.read(rewrite(pair.draft, own), pair.target).stored
    assert "embed_tokens.weight" not in found.tensors
    embed_VH[3, 3] += 1
    with pytest.raises(BadInput, match="not the target's embedding"):
        imported.read(rewrite(pair.draft, own), pair.target)


class TestLayers:
    @pytest.mark.parametrize(
        ("listed", "why"),
        [
            (DEFAULT, "HF's indices of the default layers"),
            ((8, 10, 11), r"means \(9, 11, 12\)"),
            ((5, 3, 8), "means"),
        ],
    )
    def test_a_list_in_doubt_asks(self, pair: Pair, listed: Layers, why: str) -> None:
        def doubtful(config: Config, tensors: Tensors) -> None:
            specforge(config, tensors)
            config["eagle_config"][LAYER_KEY] = list(listed)

        rewrite(pair.draft, doubtful)
        with pytest.raises(BadInput, match=why) as refused:
            imported.read(pair.draft, pair.target)
        assert "--layers" in refused.value.hint
        found = imported.read(pair.draft, pair.target, (3, 5, 8))
        assert found.stored.config.capture_layers == (3, 5, 8)

    def test_a_list_in_the_other_place_asks(self, pair: Pair) -> None:
        def elsewhere(config: Config, tensors: Tensors) -> None:
            strip(config)
            config[LAYER_KEY] = list(CAPTURE)

        with pytest.raises(BadInput, match="does not stand where specforge writes it"):
            imported.read(rewrite(pair.draft, elsewhere), pair.target)

    def test_four_layers_are_refused(self, pair: Pair) -> None:
        def four(config: Config, tensors: Tensors) -> None:
            config[LAYER_KEY] = [1, 5, 8, 11]

        with pytest.raises(BadInput, match="captures 4 layers"):
            imported.read(rewrite(pair.draft, four), pair.target)


class TestRefusals:
    @pytest.mark.parametrize("flag", FLAGS)
    def test_a_flag_by_name(self, pair: Pair, flag: str) -> None:
        other = {bool: True, int: 2, float: 2.0, str: "gelu"}
        have = FLAGS[flag].have[0]
        value = {"quant_method": "fp8"} if have is None else other[type(have)]
        value = False if have is True else value

        def flagged(config: Config, tensors: Tensors) -> None:
            config[flag] = value

        with pytest.raises(BadInput, match=f"{flag} is "):
            imported.read(rewrite(pair.draft, flagged), pair.target)

    def test_a_flag_in_eagle_config(self, pair: Pair) -> None:
        def flagged(config: Config, tensors: Tensors) -> None:
            config["eagle_config"]["norm_before_fc"] = True

        with pytest.raises(BadInput, match=r"norm_before_fc .*heeded by vllm, sglang, llamacpp"):
            imported.read(rewrite(pair.draft, flagged), pair.target)

    @pytest.mark.parametrize(
        "name", ["fc.weight", "norm.weight", "lm_head.weight", "midlayer.hidden_norm.weight"]
    )
    def test_a_missing_tensor_by_name(self, pair: Pair, name: str) -> None:
        def without(config: Config, tensors: Tensors) -> None:
            del tensors[name]

        with pytest.raises(BadInput, match=f"{name} is missing"):
            imported.read(rewrite(pair.draft, without), pair.target)

    def test_a_missing_map(self, pair: Pair) -> None:
        def without(config: Config, tensors: Tensors) -> None:
            del tensors["d2t"]

        with pytest.raises(BadInput, match="d2t is missing, of 30 draft ids"):
            imported.read(rewrite(pair.draft, without), pair.target)

    def test_an_unknown_tensor_by_name(self, pair: Pair) -> None:
        def more(config: Config, tensors: Tensors) -> None:
            tensors["fc_norm.0.weight"] = torch.ones(32)

        with pytest.raises(BadInput, match=r"fc_norm\.0\.weight is not part"):
            imported.read(rewrite(pair.draft, more), pair.target)

    def test_a_transposed_tensor(self, pair: Pair) -> None:
        def turned(config: Config, tensors: Tensors) -> None:
            tensors["fc.weight"] = tensors["fc.weight"].T.contiguous()

        with pytest.raises(BadInput, match=r"fc\.weight is \(96, 32\), expected \(32, 96\)"):
            imported.read(rewrite(pair.draft, turned), pair.target)

    def test_target_ids_in_place_of_offsets(self, pair: Pair) -> None:
        def absolute(config: Config, tensors: Tensors) -> None:
            tensors["d2t"] += torch.arange(len(tensors["d2t"]))
            del tensors["t2d"]

        with pytest.raises(BadInput, match="is it offsets"):
            imported.read(rewrite(pair.draft, absolute), pair.target)

    def test_quantised_weights(self, pair: Pair) -> None:
        def packed(config: Config, tensors: Tensors) -> None:
            tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)

        with pytest.raises(BadInput, match=r"quantised: lm_head\.weight"):
            imported.read(rewrite(pair.draft, packed), pair.target)

    def test_a_pickle(self, pair: Pair) -> None:
        (pair.draft / "model.safetensors").rename(pair.draft / "pytorch_model.bin")
        with pytest.raises(BadInput, match="is a pickle") as refused:
            imported.read(pair.draft, pair.target)
        assert "model.safetensors" in refused.value.hint

    def test_no_weights_and_no_config(self, pair: Pair) -> None:
        (pair.draft / "model.safetensors").unlink()
        with pytest.raises(BadInput, match="no safetensors file"):
            imported.read(pair.draft, pair.target)
        (pair.draft / "config.json").unlink()
        with pytest.raises(BadInput, match=r"no config\.json"):
            imported.read(pair.draft, pair.target)

    def test_a_torn_file(self, pair: Pair) -> None:
        (pair.draft / "model.safetensors").write_bytes(b"\0" * 7)
        with pytest.raises(BadInput, match="cannot be read"):
            imported.read(pair.draft, pair.target)

    @pytest.mark.parametrize(
        ("key", "value", "why"),
        [
            ("architectures", ["Eagle3DeepseekV2ForCausalLM"], "no known layout"),
            ("speculators_model_type", "dflash", "a dflash draft"),
            ("target_hidden_size", 64, "narrower or wider"),
            ("vocab_size", None, "lacks 'vocab_size'"),
        ],
    )
    def test_another_kind_of_draft(self, pair: Pair, key: str, value: Any, why: str) -> None:
        def other(config: Config, tensors: Tensors) -> None:
            config[key] = value
            if value is None:
                del config[key]

        with pytest.raises(BadInput, match=why):
            imported.read(rewrite(pair.draft, other), pair.target)

    def test_another_target(self, pair: Pair, tmp_path: Path) -> None:
        other = make(tmp_path / "other", hidden_size=48)
        with pytest.raises(BadInput, match="hidden_size is 32, expected 48"):
            imported.read(pair.draft, other.target)
