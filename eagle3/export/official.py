"""The common EAGLE-3 layout: `config.json` + `model.safetensors`, as vLLM and SGLang load it.

Engines accept a file with a tensor missing and then draft badly without a word, so both directions
check the list of names and every shape. The embedding is the target's and is not in the file.
Captured layers: indices k into HF `hidden_states` (`hs[k]` enters layer k). A config that names no
layers means (2, n // 2, n - 3) to every engine; other layers are written as
`eagle_aux_hidden_state_layer_ids` in vLLM's reading (`hs[k]`), which SGLang reads one layer late.

Tensor shapes: H hidden size, I MLP width, V vocabulary, Vd draft vocabulary, q and n the widths of
all query and of all key/value heads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3 import vocab
from eagle3.draft import Draft, DraftConfig

WEIGHTS = "model.safetensors"
ARCHITECTURE = "LlamaForCausalLMEagle3"
LAYER_KEY = "eagle_aux_hidden_state_layer_ids"


def tensor_shapes(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the file must hold, and nothing else."""
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
    if c.capture_layers != (2, num_target_layers // 2, num_target_layers - 3):
        out[LAYER_KEY] = list(c.capture_layers)
        out["eagle_config"] = {LAYER_KEY: list(c.capture_layers), "use_aux_hidden_state": True}
    return out


def read_config(folder: Path, num_target_layers: int | None = None) -> DraftConfig:
    """The sizes in a draft's `config.json`.

    Args:
        num_target_layers: layers of the target; needed where the file names neither captured layers
            nor the number of target layers (drafts made elsewhere).
    """
    raw = json.loads((folder / "config.json").read_text())
    layers = raw.get(LAYER_KEY) or raw.get("eagle_config", {}).get(LAYER_KEY)
    if layers is None:
        n = raw.get("num_target_layers", num_target_layers)
        if n is None:
            raise ValueError(f"{folder}: captured layers unknown; give the target's layer count")
        layers = (2, n // 2, n - 3)
    low, mid, high = layers
    rope = {"rope_theta": raw["rope_theta"], "rope_type": "default"} | (raw["rope_scaling"] or {})
    heads = raw["num_attention_heads"]
    return DraftConfig(
        **{k: raw[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "hidden_act")},
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads", heads),
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        rms_norm_eps=raw["rms_norm_eps"],
        rope_parameters=rope,
        max_position_embeddings=raw["max_position_embeddings"],
        bos_token_id=raw.get("bos_token_id"),
        eos_token_id=raw.get("eos_token_id"),
        pad_token_id=raw.get("pad_token_id"),
        draft_vocab_size=raw.get("draft_vocab_size", raw["vocab_size"]),
        capture_layers=(low, mid, high),
    )


def save(draft: Draft, folder: Path, num_target_layers: int, dtype: torch.dtype) -> None:
    """Write the two files; floating tensors in `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not `state_dict()`, which would spread a draft again that was gathered to be saved.
    named = dict(draft.named_parameters()) | dict(draft.named_buffers())
    tensors = {
        name: (t.to(dtype) if t.is_floating_point() else t).detach().cpu().contiguous()
        for name, t in named.items()
        if name in tensor_shapes(draft.config)
    }
    check_tensors({n: tuple(t.shape) for n, t in tensors.items()}, draft.config, folder)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = config_json(draft.config, dtype, num_target_layers)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path, embed_VH: Tensor, num_target_layers: int | None = None) -> Draft:
    """Read a draft of this layout, checked tensor by tensor; computes in the embedding's dtype.

    Raises:
        ValueError: a tensor is missing, unexpected or of another shape, or the maps disagree.
    """
    config = read_config(folder, num_target_layers)
    with safe_open(folder / WEIGHTS, framework="pt") as f:
        shapes = {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}
    check_tensors(shapes, config, folder)
    draft = Draft(config, embed_VH)
    tensors = load_file(folder / WEIGHTS)
    tensors.pop("embed_tokens.weight", None)  # the target's own is used
    draft.load_state_dict(tensors, strict=True)
    vocab.check(draft.d2t, draft.t2d)
    draft.to(device=embed_VH.device, dtype=embed_VH.dtype)
    return draft.eval().requires_grad_(False)


def check_tensors(shapes: dict[str, tuple[int, ...]], c: DraftConfig, folder: Path) -> None:
    """Raise ValueError unless these are exactly the tensors of such a draft."""
    shapes = {name: s for name, s in shapes.items() if name != "embed_tokens.weight"}
    expected = tensor_shapes(c)
    problems = [f"{name} is missing" for name in expected.keys() - shapes.keys()]
    problems += [f"{name} is not part of the layout" for name in shapes.keys() - expected.keys()]
    problems += [
        f"{name} is {shapes[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if problems:
        raise ValueError(f"{folder} is not an EAGLE-3 draft: " + "; ".join(sorted(problems)))
