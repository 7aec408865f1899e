"""The layout of vLLM's speculators library: `vllm serve DIR` finds the target in it by itself.

The same tensors as in the official layout, with the layer named `layers.0`, and a config in which
the layer's sizes have a place of their own. vLLM takes a missing `norm_before_residual` for true in
this layout, so every flag is written. Layers are indices into HF `hidden_states`, as vLLM reads
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3.draft import DraftConfig
from eagle3.export import official
from eagle3.export.layers import ENGINES, LAYER_KEY
from eagle3.export.official import Stored

ARCHITECTURE = "Eagle3DraftModel"
VERSION = "0.9.0"
"""Of the speculators library whose format this is."""

WEIGHT_MAP = {
    "fc.weight": "fc.weight",
    "midlayer.input_layernorm.weight": "layers.0.input_layernorm.weight",
    "midlayer.hidden_norm.weight": "layers.0.hidden_norm.weight",
    "midlayer.self_attn.q_proj.weight": "layers.0.self_attn.q_proj.weight",
    "midlayer.self_attn.k_proj.weight": "layers.0.self_attn.k_proj.weight",
    "midlayer.self_attn.v_proj.weight": "layers.0.self_attn.v_proj.weight",
    "midlayer.self_attn.o_proj.weight": "layers.0.self_attn.o_proj.weight",
    "midlayer.post_attention_layernorm.weight": "layers.0.post_attention_layernorm.weight",
    "midlayer.mlp.gate_proj.weight": "layers.0.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight": "layers.0.mlp.up_proj.weight",
    "midlayer.mlp.down_proj.weight": "layers.0.mlp.down_proj.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
    "d2t": "d2t",
    "t2d": "t2d",
}

OF_THE_LAYER = (
    "model_type num_hidden_layers hidden_size intermediate_size num_attention_heads "
    "num_key_value_heads head_dim vocab_size rms_norm_eps hidden_act attention_bias mlp_bias "
    "tie_word_embeddings max_position_embeddings rope_theta rope_scaling bos_token_id "
    "eos_token_id pad_token_id torch_dtype"
).split()
"""Keys of the official config that belong to `transformer_layer_config`."""


def write(
    stored: Stored,
    folder: Path,
    num_target_layers: int,
    dtype: torch.dtype,
    *,
    target: str,
    architectures: list[str],
    draft_tokens: int = 3,
) -> None:
    """Write the two files; floating tensors in `dtype`.

    Args:
        target: what vLLM is to load beside the draft: a name on the hub, or a directory.
        architectures: the target's.
        draft_tokens: length of the chain that vLLM drafts unless it is told otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        WEIGHT_MAP[name]: (t.to(dtype) if t.is_floating_point() else t).contiguous()
        for name, t in stored.for_file().items()
    }
    save_file(tensors, folder / official.WEIGHTS, metadata={"format": "pt"})
    config = _config_json(stored.config, dtype, num_target_layers)
    config["speculators_config"] = {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": draft_tokens,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "verifier": {"name_or_path": target, "architectures": architectures},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _config_json(c: DraftConfig, dtype: torch.dtype, num_target_layers: int) -> dict[str, Any]:
    whole = official.config_json(c, dtype, num_target_layers)
    config = {
        "architectures": [ARCHITECTURE],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.hidden_size,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": whole["torch_dtype"],
        "transformer_layer_config": {key: whole[key] for key in OF_THE_LAYER},
    }
    listed = ENGINES["vllm"].listed(c.capture_layers, num_target_layers)
    return config if listed is None else config | {LAYER_KEY: listed}
