"""Each format: written, read back, the same logits; and what an engine will find in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.errors import BadInput
from eagle3.export import imported, official
from eagle3.export.gguf import write_draft
from eagle3.export.layers import LAYER_KEY
from eagle3.export.write import write
from eagle3.plan.serve import FORMATS
from tests.eagle3.export.pair import CAPTURE, DEFAULT, LAYERS, LLAMA3, VOCAB, Pair, make


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make(tmp_path)


def _write(pair: Pair, out: Path, kind: str, dtype: Any = None) -> Path:
    said = write(pair.draft, pair.target, out, kind, FORMATS[kind], dtype, "org/name")
    return Path(said["path"])


@pytest.mark.parametrize("kind", FORMATS)
def test_read_back_it_is_the_same_draft(pair: Pair, tmp_path: Path, kind: str) -> None:
    found = imported.read(_write(pair, tmp_path / "out", kind), pair.target).stored
    assert found.config == pair.stored.config
    assert torch.equal(pair.logits(found), pair.logits(pair.stored))


def test_a_whole_vocabulary_has_no_maps_in_its_file(tmp_path: Path) -> None:
    """vLLM refuses a `d2t` there; files that hold the maps are read all the same."""
    whole = make(tmp_path, kept=VOCAB)
    tensors = load_file(whole.draft / official.WEIGHTS)
    assert not tensors.keys() & {"d2t", "t2d"}
    maps = {name: whole.stored.tensors[name] for name in official.MAPS}
    save_file(tensors | maps, whole.draft / official.WEIGHTS)
    assert torch.equal(whole.stored.tensors["d2t"], torch.zeros(VOCAB, dtype=torch.int64))
    save_file(tensors | maps | {"d2t": maps["d2t"] + 1}, whole.draft / official.WEIGHTS)
    with pytest.raises(ValueError, match="points outside"):
        official.read(whole.draft)


@pytest.mark.parametrize("kind", FORMATS)
def test_of_a_whole_vocabulary_too(tmp_path: Path, kind: str) -> None:
    whole = make(tmp_path, kept=VOCAB)
    found = imported.read(_write(whole, tmp_path / "out", kind), whole.target).stored
    assert torch.equal(whole.logits(found), whole.logits(whole.stored))


@pytest.mark.parametrize("kind", FORMATS)
def test_half_precision_rounds_each_weight_and_nothing_else(
    pair: Pair, tmp_path: Path, kind: str
) -> None:
    found = imported.read(_write(pair, tmp_path / "out", kind, "bfloat16"), pair.target).stored
    for name, tensor in pair.stored.tensors.items():
        if tensor.ndim == 2:
            assert torch.equal(found.tensors[name].float(), tensor.bfloat16().float()), name
    assert torch.equal(found.tensors["d2t"], pair.stored.tensors["d2t"])


def test_a_weight_that_overflows_is_refused(pair: Pair, tmp_path: Path) -> None:
    stored = pair.stored
    stored.tensors["fc.weight"][0, 0] = 1e6
    official.write(stored, pair.draft, LAYERS, torch.float32)
    with pytest.raises(BadInput, match=r"fc\.weight overflow"):
        _write(pair, tmp_path / "out", "gguf", "float16")
    assert not (tmp_path / "out").exists()


class TestOfficial:
    def test_other_layers_are_listed_for_vllm_and_for_sglang(self, pair: Pair) -> None:
        config = json.loads((pair.draft / "config.json").read_text())
        assert config[LAYER_KEY] == list(CAPTURE)
        assert config["eagle_config"][LAYER_KEY] == [k - 1 for k in CAPTURE]

    def test_default_layers_are_not_listed(self, tmp_path: Path) -> None:
        config = json.loads((make(tmp_path, DEFAULT).draft / "config.json").read_text())
        assert LAYER_KEY not in config
        assert "eagle_config" not in config

    def test_a_list_for_sglang_alone_is_not_read_as_ours(self, pair: Pair) -> None:
        _change(pair.draft, lambda config: config.pop(LAYER_KEY))
        with pytest.raises(ValueError, match="eagle3 import"):
            official.read_config(pair.draft)


class TestSpeculators:
    def test_vllm_finds_what_it_needs(self, pair: Pair, tmp_path: Path) -> None:
        folder = _write(pair, tmp_path / "out", "speculators")
        config = json.loads((folder / "config.json").read_text())
        assert config["speculators_model_type"] == "eagle3"
        assert config["speculators_config"]["verifier"] == {
            "name_or_path": "org/name",
            "architectures": ["LlamaForCausalLM"],
        }
        assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
        assert config["norm_before_residual"] is False  # vLLM takes a missing one for true
        assert config[LAYER_KEY] == list(CAPTURE)
        layer = config["transformer_layer_config"]
        assert (layer["model_type"], layer["head_dim"], layer["vocab_size"]) == ("llama", 8, VOCAB)
        names = set(load_file(folder / "model.safetensors"))
        assert "layers.0.hidden_norm.weight" in names
        assert not any(name.startswith("midlayer") for name in names)


class TestGguf:
    def test_llama_cpp_finds_what_it_needs(self, pair: Pair, tmp_path: Path) -> None:
        write_draft(pair.draft, pair.target, tmp_path / "d.gguf", "float16")
        reader = gguf.GGUFReader(tmp_path / "d.gguf")
        said = {key: field.contents() for key, field in reader.fields.items()}
        assert said["general.architecture"] == "eagle3"
        assert said["eagle3.target_layers"] == list(CAPTURE)
        assert said["eagle3.attention.head_count_kv"] == 2
        assert said["eagle3.context_length"] == 128
        assert said["eagle3.norm_before_residual"] is False
        tensors = {t.name: t for t in reader.tensors}
        kept = pair.stored.tensors["d2t"] + torch.arange(30)
        assert tensors["d2t"].data.tolist() == kept.tolist()
        assert tensors["fc.weight"].tensor_type == gguf.GGMLQuantizationType.F16
        assert tensors["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32

    def test_rows_of_queries_are_pairs(self, pair: Pair, tmp_path: Path) -> None:
        write_draft(pair.draft, pair.target, tmp_path / "d.gguf", "float32")
        tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "d.gguf").tensors}
        there = torch.from_numpy(tensors["blk.0.attn_q.weight"].data.copy())
        here = pair.stored.tensors["midlayer.self_attn.q_proj.weight"]
        assert torch.equal(there[:8], here[[0, 4, 1, 5, 2, 6, 3, 7]])  # head_dim 8
        values = torch.from_numpy(tensors["blk.0.attn_v.weight"].data.copy())
        assert torch.equal(values, pair.stored.tensors["midlayer.self_attn.v_proj.weight"])

    @pytest.mark.parametrize(
        "rope",
        [
            LLAMA3,
            {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ],
        ids=lambda rope: rope["rope_type"],
    )
    def test_scaled_rotary_positions_come_back(self, tmp_path: Path, rope: dict[str, Any]) -> None:
        pair = make(tmp_path, rope_parameters=rope)
        found = imported.read(_write(pair, tmp_path / "out", "gguf"), pair.target).stored
        assert found.config.rope_parameters == pair.stored.config.rope_parameters
        assert torch.equal(pair.logits(found), pair.logits(pair.stored))

    def test_llama3_slows_low_frequencies_by_its_factor(self, tmp_path: Path) -> None:
        pair = make(tmp_path, rope_parameters=LLAMA3)
        file = _write(pair, tmp_path / "out", "gguf")
        factors = {t.name: t for t in gguf.GGUFReader(file).tensors}["rope_freqs.weight"].data
        assert factors[0] == pytest.approx(1.0)
        assert factors[-1] == pytest.approx(8.0)

    def test_rotary_factors_of_another_target_are_refused(self, tmp_path: Path) -> None:
        pair = make(tmp_path, rope_parameters=LLAMA3)
        file = _write(pair, tmp_path / "out", "gguf")
        other = make(tmp_path / "other", rope_parameters=LLAMA3 | {"factor": 16.0})
        with pytest.raises(BadInput, match="rotary factors"):
            imported.read(file, other.target)

    def test_a_target_is_no_draft(self, pair: Pair, tmp_path: Path) -> None:
        writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(BadInput, match="architecture llama"):
            imported.read(tmp_path / "t.gguf", pair.target)


class TestOpenvino:
    def test_layers_as_it_counts_and_the_targets_tokenizer(
        self, pair: Pair, tmp_path: Path
    ) -> None:
        (pair.target / "tokenizer.json").write_text("{}")
        folder = _write(pair, tmp_path / "out", "openvino")
        note = json.loads((folder / "openvino.json").read_text())
        assert note["hidden_layers_list"] == [k - 1 for k in CAPTURE]
        assert str(folder) in note["convert"]
        assert (folder / "tokenizer.json").is_file()

    def test_default_layers_are_set_too(self, tmp_path: Path) -> None:
        pair = make(tmp_path, DEFAULT)
        folder = _write(pair, tmp_path / "out", "openvino")
        note = json.loads((folder / "openvino.json").read_text())
        assert note["hidden_layers_list"] == [1, 5, 8]


def _change(draft: Path, change: Any) -> None:
    config = json.loads((draft / "config.json").read_text())
    change(config)
    (draft / "config.json").write_text(json.dumps(config))
