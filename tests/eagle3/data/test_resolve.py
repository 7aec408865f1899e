"""What can be a target, and what is refused with which words. Targets are made by the test."""

from __future__ import annotations

import json
import shutil
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PhiConfig

from eagle3.data import checks, probe, resolve
from eagle3.data.architecture import check_capture, check_structure
from eagle3.data.checks import check_config, check_files, check_tokenizer
from eagle3.data.weights import INDEX, read_checkpoint
from eagle3.errors import BadInput, DiskFull
from eagle3.export import gguf as converting
from eagle3.target import Target
from tests.eagle3.data.conftest import MakeRun
from tests.tiny import Tiny, build_permutation_target

VOCAB = 64


@pytest.fixture
def target(tmp_path: Path, tiny: Any) -> Path:
    """A copy of the tiny target, to be spoilt."""
    return Path(shutil.copytree(tiny.path, tmp_path / "target"))


def edit(path: Path, **values: Any) -> None:
    found = json.loads(path.read_text())
    for key, value in values.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    path.write_text(json.dumps(found))


def check(folder: Path) -> None:
    """All that needs no weights in memory."""
    config = check_config(folder)
    check_structure(config, None)
    check_files(folder, config)
    check_tokenizer(folder, config.vocab_size)


def refused(folder: Path, match: str) -> BadInput:
    with pytest.raises(BadInput, match=match) as e:
        check(folder)
    return e.value


class TestResolve:
    def test_a_good_target_is_described(self, make_run: MakeRun, tiny: Tiny) -> None:
        run = make_run()
        facts = run.run("resolve")
        assert facts["capture_layers"] == [2, 4, 5]
        assert facts["architecture"] == "LlamaForCausalLM"
        assert (facts["num_layers"], facts["hidden_size"], facts["vocab_size"]) == (8, 64, VOCAB)
        assert facts["dtype"] == "float32"
        assert facts["resolved"] == f"file://{tiny.path}@sha256:{facts['weights_sha256'][:12]}"
        local = json.loads((run.out("resolve") / "local.json").read_text())
        engines = {"asked": ["native"], "engines": ["native"], "left_out": {}}
        assert local == {"path": str(tiny.path), "engines": engines}
        assert json.loads((run.out("resolve") / "target.json").read_text()) == facts

    def test_an_engine_that_is_not_installed_ends_it(
        self, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UPDRAFT_ENGINES", str(tmp_path))
        with pytest.raises(BadInput, match="vllm, which is not installed") as error:
            make_run(engines=["native", "vllm"]).run("resolve")
        assert error.value.hint == "eagle3 engines install vllm"

    def test_what_the_default_leaves_out_is_said(
        self, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(target: Path) -> None:
            raise BadInput("llama.cpp's converter does not know it")

        monkeypatch.setattr(converting, "check_target", refuse)
        run = make_run(engines="auto")
        run.run("resolve")
        [warning] = [line for line in run.logged("resolve", "log") if line["level"] == "warning"]
        assert "will not be tried in llamacpp" in warning["message"]
        assert "does not know it" in warning["message"]
        with pytest.raises(BadInput, match="does not know it"):
            make_run(engines=["llamacpp"]).run("resolve")

    def test_a_second_time_nothing_is_loaded(
        self, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = make_run()
        first = run.run("resolve")
        monkeypatch.setattr(resolve, "probe", lambda *_: pytest.fail("compared again"))
        assert run.run("resolve") == first

    def test_other_weights_are_another_target(self, make_run: MakeRun, tmp_path: Path) -> None:
        one, two = (build_permutation_target(tmp_path / str(i), seed=i).path for i in (1, 2))
        hashes = [make_run(target=path).run("resolve") for path in (one, two)]
        assert hashes[0]["weights_sha256"] != hashes[1]["weights_sha256"]
        assert hashes[0]["tokenizer_sha256"] == hashes[1]["tokenizer_sha256"]
        assert hashes[0]["template_sha256"] == hashes[1]["template_sha256"]

    def test_a_directory_that_does_not_exist(self, make_run: MakeRun, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="does not exist"):
            make_run(target=tmp_path / "none").run("resolve")

    def test_a_worker_brings_s3_and_mlflow_targets(self, make_run: MakeRun, tiny: Tiny) -> None:
        with pytest.raises(BadInput, match="not on this machine") as e:
            make_run(target="s3://bucket/target").run("resolve")
        assert "file:///abs/dir" in e.value.hint
        run = make_run(target="models:/name/3")
        brought = run.config.model_copy(update={"brought": {"models:/name/3": str(tiny.path)}})
        (run.path / "config.json").write_text(brought.model_dump_json())
        assert run.run("resolve")["resolved"].startswith("models:/name/3@sha256:")

    def test_a_missing_prompt_file_is_found_here_already(
        self, make_run: MakeRun, tmp_path: Path
    ) -> None:
        with pytest.raises(BadInput, match=r"none\.jsonl does not exist"):
            make_run(source=tmp_path / "none.jsonl").run("resolve")

    def test_a_draft_to_go_on_from_is_compared_here_already(
        self, make_run: MakeRun, tmp_path: Path
    ) -> None:
        sizes = {
            "hidden_size": 32, "vocab_size": VOCAB, "intermediate_size": 8, "hidden_act": "silu",
            "num_attention_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "rope_scaling": None, "max_position_embeddings": 64, "draft_vocab_size": 32,
            "num_target_layers": 7,
        }  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(sizes))
        with pytest.raises(BadInput, match="hidden size 32 where this target"):
            make_run(train={"start_from": str(tmp_path)}).run("resolve")
        with pytest.raises(BadInput, match="draft:m@champion is a registered draft") as e:
            make_run(train={"start_from": "draft:m@champion"}).run("resolve")
        assert "updraft pull" in e.value.hint

    def test_a_disk_too_small_for_the_plan(
        self, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 1000))
        with pytest.raises(DiskFull, match=r"needs up to .* GB") as e:
            make_run().run("resolve")
        assert "prompts.limit" in e.value.hint

    def test_answers_as_long_as_the_context(self, make_run: MakeRun) -> None:
        with pytest.raises(BadInput, match=r"regenerate\.max_new_tokens 256 leaves no room"):
            make_run(regenerate={"max_new_tokens": 256}).run("resolve")


class TestConfig:
    def test_no_model_directory(self, tmp_path: Path) -> None:
        refused(tmp_path, r"has no config\.json")

    def test_config_that_is_not_json(self, target: Path) -> None:
        (target / "config.json").write_text("[")
        refused(target, "not a JSON object")

    @pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
    def test_remote_code(self, target: Path, name: str) -> None:
        edit(target / name, auto_map={"AutoModelForCausalLM": "evil.Model"})
        refused(target, rf"{name} asks to run code that comes with the model \(auto_map\)")

    def test_encoder_decoder(self, target: Path) -> None:
        edit(target / "config.json", is_encoder_decoder=True)
        refused(target, "encoder-decoder")

    def test_not_a_causal_model(self, target: Path) -> None:
        edit(target / "config.json", architectures=["LlamaForSequenceClassification"])
        refused(target, "LlamaForSequenceClassification is not a causal language model")
        edit(target / "config.json", architectures=["ViTModel"], model_type="vit")
        refused(target, "ViTModel is not a causal language model")

    def test_unknown_architecture(self, target: Path) -> None:
        edit(target / "config.json", model_type="never-heard-of")
        refused(target, r"transformers cannot read the target's config\.json")

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"quant_method": "hqq"}, r"quantised \(hqq\); of quantised weights"),
            ({"quant_method": "gptq", "bits": 3}, r"quantised \(gptq, 3 bits\)"),
            ({"load_in_4bit": True}, "quantised by bitsandbytes, which is not installed"),
        ],
    )
    def test_quantised(
        self, target: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, object], words: str
    ) -> None:
        monkeypatch.setattr(checks, "find_spec", lambda name: None)
        edit(target / "config.json", quantization_config=config)
        assert "the checkpoint it was quantised from" in refused(target, words).hint

    def test_an_image_model_whose_text_part_is_not_loaded_alone(self, target: Path) -> None:
        text = json.loads((target / "config.json").read_text())
        edit(
            target / "config.json",
            architectures=["LlavaForConditionalGeneration"],
            model_type="llava",
            text_config=text,
        )
        error = refused(target, "LlavaForConditionalGeneration is not a causal language model")
        assert "text part (llama)" in error.hint


class TestStructure:
    def test_fewer_than_seven_layers(self, tmp_path: Path) -> None:
        path = build_permutation_target(tmp_path, layers=6).path
        error = refused(path, "the target has 6 layers; .* needs at least 7")
        assert "capture_layers" in error.hint
        assert check_structure(check_config(path), (1, 3, 5)) == (1, 3, 5)

    def test_captured_layers_must_be_three_of_the_target(self) -> None:
        assert check_capture(30, None) == (2, 15, 27)
        for wrong in ((2, 2, 5), (5, 4, 3), (1, 2, 8)):
            with pytest.raises(BadInput, match="three different layers"):
                check_capture(8, wrong)

    def test_layers_in_another_place(self, target: Path) -> None:
        edit(target / "config.json", model_type="gpt2", architectures=["GPT2LMHeadModel"])
        refused(target, "GPT2LMHeadModel has no decoder layers where this engine looks")

    @pytest.mark.parametrize(
        ("model_type", "sizes", "words"),
        [
            ("mamba", {}, "MambaForCausalLM is a recurrent or linear-attention model"),
            ("rwkv", {"attention_hidden_size": 32}, "RwkvForCausalLM is a recurrent"),
            ("qwen3_next", {"num_experts": 4}, "Qwen3NextForCausalLM .* linear_attention"),
            ("jamba", {"num_attention_heads": 4, "num_experts": 2}, "JambaForCausalLM"),
            ("lfm3", {}, r"Lfm3ForCausalLM .* \(layers of type conv\)"),
            ("deepseek_v32", {}, "DeepseekV32ForCausalLM has layers of type indexed_attention"),
        ],
    )
    def test_what_cannot_be_rolled_back_is_refused_by_name(
        self, model_type: str, sizes: dict[str, int], words: str
    ) -> None:
        config = CONFIG_MAPPING[model_type](num_hidden_layers=8, hidden_size=32, **sizes)
        with pytest.raises(BadInput, match=words):
            check_structure(config, None)

    def test_a_head_with_a_bias(self) -> None:
        config = PhiConfig(num_hidden_layers=8, hidden_size=32, num_attention_heads=4)
        with pytest.raises(BadInput, match="PhiForCausalLM has an LM head with a bias"):
            check_structure(config, None)


class TestWeights:
    def test_pickles_only(self, target: Path) -> None:
        (target / "model.safetensors").rename(target / "pytorch_model.bin")
        refused(target, "weights are pickles")

    def test_no_weights(self, target: Path) -> None:
        (target / "model.safetensors").unlink()
        refused(target, "holds no weights")

    @pytest.mark.parametrize("keep", [0.9, 0.0001, 0])
    def test_truncated(self, target: Path, keep: float) -> None:
        path = target / "model.safetensors"
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])
        refused(target, r"model\.safetensors is (cut short|not a whole safetensors file)")

    def test_damaged_header(self, target: Path) -> None:
        path = target / "model.safetensors"
        path.write_bytes(struct.pack("<Q", 20) + b"x" * 400)
        refused(target, r"the header of model\.safetensors is damaged")

    def test_longer_than_it_says(self, target: Path) -> None:
        with (target / "model.safetensors").open("ab") as f:
            f.write(b"more")
        refused(target, "longer than it should be")

    def test_index_and_files_must_agree(self, target: Path) -> None:
        weights = load_file(target / "model.safetensors")
        (target / "model.safetensors").unlink()
        names = sorted(weights)
        save_file({k: weights[k] for k in names[:9]}, target / "a.safetensors")
        save_file({k: weights[k] for k in names[9:]}, target / "b.safetensors")
        where = {k: "a.safetensors" if k in names[:9] else "b.safetensors" for k in names}
        (target / INDEX).write_text(json.dumps({"weight_map": where}))
        assert set(read_checkpoint(target).tensors) == set(names)
        wrong = {**where, names[0]: "b.safetensors"}
        (target / INDEX).write_text(json.dumps({"weight_map": wrong}))
        refused(target, "says that b.safetensors holds")
        (target / INDEX).write_text(json.dumps({"weight_map": {"x": "../c.safetensors"}}))
        refused(target, "which is not there")
        (target / INDEX).write_text("{}")
        refused(target, "is damaged")

    def test_what_transformers_would_not_load_is_not_read(self, target: Path) -> None:
        weights = load_file(target / "model.safetensors")
        save_file(weights, target / "other.safetensors")
        (target / INDEX).write_text(json.dumps({"weight_map": {"x": "other.safetensors"}}))
        assert [f.name for f in read_checkpoint(target).files] == ["model.safetensors"]
        (target / INDEX).unlink()
        (target / "model.safetensors").unlink()
        refused(target, r"holds no weights")

    def test_a_type_that_a_draft_cannot_be_written_in(self, target: Path) -> None:
        weights = {k: v.double() for k, v in load_file(target / "model.safetensors").items()}
        save_file(weights, target / "model.safetensors")
        refused(target, "weights are f64; expected float32, bfloat16, float16")

    def test_weights_of_another_model(self, target: Path) -> None:
        edit(target / "config.json", vocab_size=80)
        refused(target, "the weights and the config are of different models")


class TestTokenizer:
    def test_larger_than_the_embedding(self, target: Path) -> None:
        edit(target / "config.json", vocab_size=60)
        with pytest.raises(BadInput, match="token ids up to 63, the embedding 60 rows"):
            check_tokenizer(target, 60)

    def test_no_chat_template(self, target: Path) -> None:
        (target / "chat_template.jinja").unlink()
        refused(target, "no chat template")

    def test_a_chat_template_that_does_not_work(self, target: Path) -> None:
        (target / "chat_template.jinja").write_text("{% for m in %}")
        refused(target, "chat template does not work")
        (target / "chat_template.jinja").write_text("{{ 1 / 0 }}")
        refused(target, "chat template does not work: division by zero")
        (target / "chat_template.jinja").write_text("")
        refused(target, "makes nothing of a user's message")

    def test_no_tokenizer(self, target: Path) -> None:
        for path in target.glob("tokenizer*"):
            path.unlink()
        refused(target, "tokenizer")


class TestProbe:
    def test_an_engine_that_differs_is_found(
        self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forward = Target.forward

        def wrong(self: Target, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
            hidden, features = forward(self, *args, **kwargs)
            return hidden * 1.01, features

        monkeypatch.setattr(Target, "forward", wrong)
        with pytest.raises(BadInput, match="cannot run LlamaForCausalLM exactly: its hidden state"):
            probe.probe(tiny.path, (2, 4, 5))

    def test_logits_that_are_scaled_are_found(
        self, target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            Target, "logits", lambda self, hidden: hidden @ self.head_weight().T * 2
        )
        with pytest.raises(BadInput, match="its logits differs from that of transformers"):
            probe.probe(target, (2, 4, 5))

    def test_a_missing_tensor_is_not_made_up(self, target: Path) -> None:
        weights = load_file(target / "model.safetensors")
        del weights["model.layers.3.mlp.up_proj.weight"]
        save_file(weights, target / "model.safetensors", {"format": "pt"})
        with pytest.raises(BadInput, match=r"missing keys model\.layers\.3\.mlp\.up_proj\.weight"):
            probe.probe(target, (2, 4, 5))

    def test_a_tensor_of_another_shape(self, target: Path) -> None:
        edit(target / "config.json", intermediate_size=96)
        with pytest.raises(BadInput, match=r"mismatched keys .*mlp\.down_proj\.weight"):
            probe.probe(target, (2, 4, 5))


def test_hashes_do_not_depend_on_the_library_version(target: Path) -> None:
    def config_hash() -> str:
        config = check_config(target)
        tokenizer = check_tokenizer(target, VOCAB)
        found: str = checks.describe(target, config, tokenizer, (2, 4, 5))["config_sha256"]
        return found

    before = config_hash()
    edit(target / "config.json", transformers_version="9.9.9")
    assert config_hash() == before


def test_every_refusal_leaves_the_model_unloaded(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loaded)
    edit(target / "config.json", num_hidden_layers=3)
    refused(target, "has 3 layers")
