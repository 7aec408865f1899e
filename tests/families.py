"""Tiny random targets of many architectures, for the tests of what can be a target.

All have 8 layers, a hidden size of 32 and 96 tokens, and never end an answer. Where an architecture
has a sliding window it is 8 tokens here, so that short prompts are longer than it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCAB = 96
LAYERS = 8
WINDOW = 8

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}

MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}

HALF_SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)


@dataclass(frozen=True)
class Family:
    """An architecture that can be a target, as `docs/targets.md` names it."""

    name: str
    model_type: str
    config: dict[str, Any]
    draft_heads: tuple[int, int, int]
    """Query heads, key/value heads and head_dim of the draft."""
    draft_width: int = 64

    def __str__(self) -> str:
        return self.model_type


DECODED = [
    Family("Llama", "llama", {}, (4, 2, 8)),
    Family("Mistral", "mistral", {"sliding_window": WINDOW, "head_dim": 16}, (4, 2, 16)),
    Family(
        "Qwen2, Qwen2.5",
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 4},
        (4, 2, 8),
    ),
    Family("Qwen3", "qwen3", {"head_dim": 16}, (4, 2, 16)),
    Family(
        "Qwen3-MoE",
        "qwen3_moe",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        (4, 2, 16),
    ),
    Family(
        "Gemma 2",
        "gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 8,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        (4, 2, 16),
    ),
    Family(
        "Gemma 3 (text)",
        "gemma3_text",
        {"head_dim": 16, "sliding_window": WINDOW, "layer_types": HALF_SLIDING},
        (4, 2, 16),
    ),
    Family(
        "Gemma 4 (text)",
        "gemma4_text",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": WINDOW,
            "layer_types": HALF_SLIDING,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
        },
        (4, 2, 16),
    ),
    Family("Phi-3", "phi3", {"sliding_window": WINDOW}, (4, 2, 8)),
    Family("OLMo 2", "olmo2", {}, (4, 2, 8)),
    Family(
        "gpt-oss",
        "gpt_oss",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        (4, 2, 16),
        128,
    ),
    Family("DeepSeek-V2", "deepseek_v2", MLA, (1, 1, 32)),
    Family("DeepSeek-V3, R1", "deepseek_v3", MLA | {"n_group": 2, "topk_group": 1}, (1, 1, 32)),
]
"""Decoded with a draft in the tests, token for token like transformers."""

PROBED = [
    Family("OLMo 3", "olmo3", {"sliding_window": WINDOW, "layer_types": HALF_SLIDING}, (4, 2, 8)),
    Family("Mixtral", "mixtral", {"num_local_experts": 4}, (4, 2, 8)),
    Family("SmolLM3", "smollm3", {}, (4, 2, 8)),
    Family("Granite", "granite", {"logits_scaling": 4.0, "residual_multiplier": 0.5}, (4, 2, 8)),
    Family("Cohere (Command R)", "cohere", {"logit_scale": 0.25}, (4, 2, 8)),
    Family("GLM-4", "glm4", {"head_dim": 8}, (4, 2, 8)),
]
"""Compared with transformers by `resolve` only."""


def build(family: Family, folder: Path) -> Path:
    """Write a target with random weights."""
    config = CONFIG_MAPPING[family.model_type](**(SIZES | family.config))
    randomised(AutoModelForCausalLM.from_config(config)).save_pretrained(folder)
    return folder


def randomised(model: Any) -> Any:
    """The model with large weights: its next token depends on the whole context."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.3 * noise)
            else:  # norms, biases and sinks, about what they start with
                parameter.add_(0.2 * noise)
    return model
