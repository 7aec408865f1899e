"""Quantised targets are read as the values that their weights stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from eagle3.data.architecture import check_structure
from eagle3.data.checks import check_config, check_files, describe
from eagle3.data.local import default_device
from eagle3.data.probe import probe
from eagle3.errors import BadInput
from eagle3.load import load_model
from eagle3.target import Target
from tests.families import DECODED, LAYERS, build
from tests.tiny import build_permutation_target, build_random_target

torch.set_num_threads(1)

CAPTURED = (2, 4, 5)
BLOCK = 16
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_fp8(folder: Path) -> dict[str, Tensor]:
    """Quantise a target's projections in blocks, as Qwen's and DeepSeek's FP8 checkpoints are;
    returns what every weight stands for."""
    stored, means = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = means[name] = weight
        if not name.endswith("proj.weight"):
            continue
        out, in_ = weight.shape
        blocks = weight.view(out // BLOCK, BLOCK, in_ // BLOCK, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        small = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        stored[name], stored[f"{name}_scale_inv"] = small.view(out, in_), scale
        means[name] = (small.float() * scale[:, None, :, None]).view(out, in_)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    _say(folder, {"activation_scheme": "dynamic", "fmt": "e4m3", **config})
    return means


def to_mxfp4(folder: Path) -> dict[str, Tensor]:
    """Put random 4-bit experts into a gpt-oss target, as its checkpoints hold them; returns what
    they stand for."""
    stored = load_file(folder / "model.safetensors")
    means = {}
    generator = torch.Generator().manual_seed(0)
    for name in [n for n in stored if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, in_, out = stored.pop(name).shape
        shape = (experts, out, in_ // 32, 16)
        blocks = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 126, shape[:3], dtype=torch.uint8, generator=generator)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        values = FP4[torch.stack([blocks & 15, blocks >> 4], -1).int()].flatten(-2)
        values = values * 2.0 ** (scales.int() - 127)[..., None]
        means[name] = values.reshape(experts, out, in_).transpose(1, 2)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    _say(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return means


def to_awq(folder: Path) -> dict[str, Tensor]:
    """Pack a target's projections as AWQ does; returns what they stand for."""
    return _pack(folder, "awq", {"version": "gemm"})


def to_gptq(folder: Path) -> dict[str, Tensor]:
    """The same as GPTQ does, inputs in no order of groups."""
    return _pack(folder, "gptq", {"desc_act": True})


def to_gptq_v2(folder: Path) -> dict[str, Tensor]:
    return _pack(folder, "gptq", {"checkpoint_format": "gptq_v2"})


def _pack(folder: Path, method: str, more: dict[str, Any]) -> dict[str, Tensor]:
    stored, means = {}, {}
    generator = torch.Generator().manual_seed(0)
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = means[name] = weight
        if not name.endswith("proj.weight"):
            continue
        out, in_ = weight.shape
        whole = torch.randint(16, (in_, out), generator=generator)
        zeros = torch.randint(1, 16, (in_ // BLOCK, out), generator=generator)
        scales = torch.rand(in_ // BLOCK, out, generator=generator).half() / 100
        group = torch.arange(in_) // BLOCK
        layer = name.removesuffix(".weight")
        del stored[name]
        if method == "awq":
            stored[f"{layer}.qweight"] = _words(whole, [0, 2, 4, 6, 1, 3, 5, 7])
            stored[f"{layer}.qzeros"] = _words(zeros, [0, 2, 4, 6, 1, 3, 5, 7])
        else:
            if "desc_act" in more:
                group = group[torch.randperm(in_, generator=generator)]
            less = 0 if "checkpoint_format" in more else 1
            stored[f"{layer}.qweight"] = _words(whole.T).T.contiguous()
            stored[f"{layer}.qzeros"] = _words(zeros - less)
            stored[f"{layer}.g_idx"] = group.int()
        stored[f"{layer}.scales"] = scales
        means[name] = ((whole - zeros[group]) * scales.float()[group]).T
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    _say(folder, {"quant_method": method, "bits": 4, "group_size": BLOCK, **more})
    return means


def _words(integers: Tensor, order: list[int] | None = None) -> Tensor:
    """Eight neighbours in an int32; `order`: which of them comes first, from the lowest bits."""
    eights = integers.reshape(len(integers), -1, 8)
    if order is not None:
        eights = eights[..., order]
    words = (eights.long() << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _say(folder: Path, quantisation: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": quantisation})
    )


def accepted(folder: Path) -> None:
    config = check_config(folder)
    assert check_structure(config, None) == CAPTURED
    check_files(folder, config)
    probe(folder, CAPTURED)


@pytest.mark.parametrize(
    ("model_type", "quantise"),
    [
        ("llama", to_fp8),
        ("gpt_oss", to_mxfp4),
        ("llama", to_awq),
        ("qwen2", to_gptq),
        ("llama", to_gptq_v2),
    ],
)
def test_weights_are_what_the_stored_numbers_stand_for(
    tmp_path: Path, model_type: str, quantise: Any
) -> None:
    folder = build(next(f for f in DECODED if f.model_type == model_type), tmp_path)
    means = quantise(folder)
    accepted(folder)
    for dtype in (torch.float32, torch.float64):
        weights = load_model(folder, dtype)[0].state_dict()
        assert {w.dtype for w in weights.values() if w.is_floating_point()} == {dtype}
        assert len(means) >= LAYERS
        for name, value in means.items():
            assert torch.equal(weights[name], value.to(dtype)), name


def test_facts_are_those_of_the_model_not_of_the_packed_file(tmp_path: Path) -> None:
    tiny = build_permutation_target(tmp_path)
    plain = sum(w.numel() for w in load_file(tmp_path / "model.safetensors").values())
    to_fp8(tmp_path)
    config = check_config(tmp_path)

    class Tokenizer:
        chat_template = ""

    facts = describe(tiny.path, config, Tokenizer(), CAPTURED)  # type: ignore[arg-type]
    assert (facts["quantisation"], facts["parameters"]) == ("fp8", plain)
    assert facts["dtype"] == "float32"


@pytest.mark.gpu
@pytest.mark.parametrize("quantise", [to_fp8, to_awq, to_gptq])
def test_a_gpu_holds_the_same_values(tmp_path: Path, quantise: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    means = quantise(build(next(f for f in DECODED if f.model_type == "llama"), tmp_path))
    weights = load_model(tmp_path, torch.float32, "cuda")[0].state_dict()
    for name, value in means.items():
        assert torch.equal(weights[name].cpu(), value), name


@pytest.mark.parametrize(
    ("said", "unread"),
    [
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq, layout gemv"),
        ({"quant_method": "gptq", "bits": 3}, "gptq, 3 bits"),
        ({"quant_method": "hqq"}, "hqq"),
    ],
)
def test_packings_that_are_not_read_are_refused_by_name(
    tmp_path: Path, said: dict[str, Any], unread: str
) -> None:
    build_permutation_target(tmp_path)
    _say(tmp_path, said)
    with pytest.raises(BadInput, match=rf"quantised \({unread}\)"):
        check_config(tmp_path)


@pytest.mark.gpu  # as that is where its package is installed
@pytest.mark.parametrize(("bits", "lost"), [(4, 0.2), (8, 0.02)])
def test_bitsandbytes_weights_are_undone(tmp_path: Path, bits: int, lost: float) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    device = default_device()
    plain = AutoModelForCausalLM.from_pretrained(
        build_random_target(tmp_path / "plain"), dtype=torch.float32
    )
    quantised = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain",
        quantization_config=BitsAndBytesConfig(**{f"load_in_{bits}bit": True}),
        device_map={"": device},
        dtype=torch.float16,
    )
    quantised.save_pretrained(tmp_path / "quantised")
    accepted(tmp_path / "quantised")
    target = Target.load(tmp_path / "quantised", device=device)
    kinds = {type(module) for module in target.model.modules()}
    assert not kinds & {bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt}
    weights = plain.state_dict()
    for name, weight in target.model.state_dict().items():
        assert weight.dtype == torch.float32
        assert (weight.cpu() - weights[name]).norm() < lost * weights[name].norm(), name
