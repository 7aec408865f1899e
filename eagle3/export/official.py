"""The common EAGLE-3 layout: `config.json` + `model.safetensors`, as vLLM and SGLang load it.

Engines accept a file with a tensor missing and then draft badly without a word, so both directions
check the list of names and every shape. The embedding is the target's and is not in the file.
Captured layers are indices into HF `hidden_states` (`eagle3.export.layers`). A config that lists
none means (2, n // 2, n - 3) to vLLM, SGLang and llama.cpp; other layers are listed twice, for vLLM
and llama.cpp at the top level and for SGLang, which counts otherwise, in `eagle_config`. So one
directory serves all three.

Tensor shapes: H hidden size, I MLP width, V vocabulary, Vd draft vocabulary, q and n the widths of
all query and of all key/value heads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3 import fit, vocab
from eagle3.draft import Draft, DraftConfig
from eagle3.export.flags import unsupported
from eagle3.export.layers import ENGINES, TOOLS, Layers
from eagle3.export.layers import LAYER_KEY as LAYER_KEY

WEIGHTS = "model.safetensors"
ARCHITECTURE = "LlamaForCausalLMEagle3"
MAPS = ("d2t", "t2d")


def tensor_shapes(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of such a draft, and nothing else; the file must hold them all, but for the
    `MAPS` of a whole vocabulary."""
    h, i = c.hidden_size, c.intermediate_size
    q, n = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    return {
        "fc.weight": (h, 3 * h),
        "midlayer.input_layernorm.weight": (h,),
        "midlayer.hidden_norm.weight": (h,),
        "midlayer.self_attn.q_proj.weight": (q, 2 * h),
        "midlayer.self_attn.k_proj.weight": (n, 2 * h),
        "midlayer.self_attn.v_proj.weight": (n, 2 * h),
        "midlayer.self_attn.o_proj.weight": (h, q),
        "midlayer.post_attention_layernorm.weight": (h,),
        "midlayer.mlp.gate_proj.weight": (i, h),
        "midlayer.mlp.up_proj.weight": (i, h),
        "midlayer.mlp.down_proj.weight": (h, i),
        "norm.weight": (h,),
        "lm_head.weight": (c.draft_vocab_size, h),
        "d2t": (c.draft_vocab_size,),
        "t2d": (c.vocab_size,),
    }


def is_whole(c: DraftConfig) -> bool:
    """The draft proposes every token that the target knows: its maps say nothing."""
    return c.draft_vocab_size == c.vocab_size


def config_json(c: DraftConfig, dtype: torch.dtype, num_target_layers: int) -> dict[str, Any]:
    """The draft's `config.json`."""
    rope = dict(c.rope_parameters)
    theta = rope.pop("rope_theta", 10000.0)
    scaling = None if rope.get("rope_type", "default") == "default" else rope
    out: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": c.hidden_size,
        "target_hidden_size": c.hidden_size,
        "num_aux_hidden_states": 3,
        "num_target_layers": num_target_layers,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": c.hidden_act,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": c.max_position_embeddings,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "bos_token_id": c.bos_token_id,
        "eos_token_id": c.eos_token_id,
        "pad_token_id": c.pad_token_id,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    listed = ENGINES["vllm"].listed(c.capture_layers, num_target_layers)
    if listed is not None:
        for_sglang = ENGINES["sglang"].listed(c.capture_layers, num_target_layers)
        out[LAYER_KEY] = listed
        out["eagle_config"] = {LAYER_KEY: for_sglang, "use_aux_hidden_state": True}
    return out


def read_config(folder: Path, num_target_layers: int | None = None) -> DraftConfig:
    """The sizes in a draft's `config.json`.

    Args:
        num_target_layers: layers of the target; needed where the file names neither captured layers
            nor the number of target layers.

    Raises:
        ValueError: it asks for what this package's draft has not, or captures unknown layers.
    """
    raw = json.loads((folder / "config.json").read_text())
    if refused := list(unsupported(raw)):
        raise ValueError(f"{folder} is not a draft of this kind: " + "; ".join(refused))
    listed = raw.get(LAYER_KEY)
    n = raw.get("num_target_layers", num_target_layers)
    if listed is None and LAYER_KEY in raw.get("eagle_config", {}):
        raise ValueError(
            f"{folder} lists its layers in eagle_config alone, which tools count differently: "
            "read it with `eagle3 import`"
        )
    if listed is None and n is None:
        raise ValueError(f"{folder}: captured layers unknown; give the target's layer count")
    return sizes(raw, TOOLS["updraft"].captured(listed, n or 0))


def sizes(raw: dict[str, Any], layers: Layers) -> DraftConfig:
    """The sizes that a `config.json` names, whoever wrote it.

    Raises:
        KeyError: one is missing.
    """
    heads = raw["num_attention_heads"]
    return DraftConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        vocab_size=raw["vocab_size"],
        rms_norm_eps=raw["rms_norm_eps"],
        hidden_act=raw.get("hidden_act", "silu"),
        rope_parameters=_rope(raw),
        max_position_embeddings=raw["max_position_embeddings"],
        bos_token_id=raw.get("bos_token_id"),
        eos_token_id=raw.get("eos_token_id"),
        pad_token_id=raw.get("pad_token_id"),
        draft_vocab_size=raw.get("draft_vocab_size") or raw["vocab_size"],
        capture_layers=layers,
    )


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Rotary positions in the form of transformers 5; earlier ones had two keys, and `type`."""
    found = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = found.pop("rope_type", None) or found.pop("type", None) or "default"
    theta = found.pop("rope_theta", None) or raw.get("rope_theta") or fit.DEFAULT_THETA
    return {"rope_theta": theta, "rope_type": kind} | found


@dataclass(frozen=True)
class Stored:
    """A draft as a file of any format holds it: its sizes, and tensors by their official names."""

    config: DraftConfig
    tensors: dict[str, Tensor]

    def for_file(self) -> dict[str, Tensor]:
        """The tensors to write: without the maps of a whole vocabulary, which vLLM refuses."""
        left_out = MAPS if is_whole(self.config) else ()
        return {name: t for name, t in self.tensors.items() if name not in left_out}


def read(folder: Path, num_target_layers: int | None = None) -> Stored:
    """Read a draft of this layout, checked tensor by tensor, without a target.

    Raises:
        ValueError: a tensor is missing, unexpected or of another shape, or the maps disagree.
    """
    config = read_config(folder, num_target_layers)
    with safe_open(folder / WEIGHTS, framework="pt") as f:
        shapes = {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}
    check_tensors(shapes, config, folder)
    tensors = load_file(folder / WEIGHTS)
    tensors.pop("embed_tokens.weight", None)  # the target's own is used
    if is_whole(config):
        every_V = torch.arange(config.vocab_size)
        tensors = dict(zip(MAPS, vocab.maps(every_V, len(every_V)), strict=True)) | tensors
    vocab.check(tensors["d2t"], tensors["t2d"])
    return Stored(config, tensors)


def write(stored: Stored, folder: Path, num_target_layers: int, dtype: torch.dtype) -> None:
    """Write the two files; floating tensors in `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (t.to(dtype) if t.is_floating_point() else t).detach().cpu().contiguous()
        for name, t in stored.for_file().items()
    }
    check_tensors({n: tuple(t.shape) for n, t in tensors.items()}, stored.config, folder)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = config_json(stored.config, dtype, num_target_layers)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def save(draft: Draft, folder: Path, num_target_layers: int, dtype: torch.dtype) -> None:
    """Write a draft that stands in memory, as `write`."""
    # Not `state_dict()`, which would spread a draft again that was gathered to be saved.
    named = dict(draft.named_parameters()) | dict(draft.named_buffers())
    names = tensor_shapes(draft.config)
    tensors: dict[str, Tensor] = {name: t for name, t in named.items() if name in names}
    write(Stored(draft.config, tensors), folder, num_target_layers, dtype)


def load(folder: Path, embed_VH: Tensor, num_target_layers: int | None = None) -> Draft:
    """Read a draft as `read`; computes in the embedding's dtype."""
    stored = read(folder, num_target_layers)
    draft = Draft(stored.config, embed_VH)
    draft.load_state_dict(stored.tensors, strict=True)
    draft.to(device=embed_VH.device, dtype=embed_VH.dtype)
    return draft.eval().requires_grad_(False)


def check_tensors(shapes: dict[str, tuple[int, ...]], c: DraftConfig, folder: Path) -> None:
    """Raise ValueError unless these are exactly the tensors of such a draft."""
    shapes = {name: s for name, s in shapes.items() if name != "embed_tokens.weight"}
    expected = tensor_shapes(c)
    needed = expected.keys() - (MAPS if is_whole(c) else ())
    problems = [f"{name} is missing" for name in needed - shapes.keys()]
    problems += [f"{name} is not part of the layout" for name in shapes.keys() - expected.keys()]
    problems += [
        f"{name} is {shapes[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if problems:
        raise ValueError(f"{folder} is not an EAGLE-3 draft: " + "; ".join(sorted(problems)))
