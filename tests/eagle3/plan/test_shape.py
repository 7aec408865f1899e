"""Sizes read from a config alone, against real (small) models of every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from eagle3.draft import Draft, DraftConfig
from eagle3.plan import DraftShape, TargetShape, UnknownShape
from eagle3.plan.families import FAMILIES

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 12,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 10,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 6,
}
SPARSE = {"moe_intermediate_size": 12, "num_experts": 6, "num_experts_per_tok": 2}
GEMMA4_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 12,
}
EXTRA: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 6},
    "gpt_oss": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": {**SPARSE, "shared_expert_intermediate_size": 20, "mlp_only_layers": [3]},
    "qwen3_moe": {**SPARSE, "decoder_sparse_step": 2},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, "q_lora_rank": None, "n_group": 2, "topk_group": 1},
}


def small_config(kind: str, **more: Any) -> Any:
    return CONFIG_MAPPING[kind](**{**SIZES, **EXTRA.get(kind, {}), **more})


def built(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def as_stored(config: Any) -> dict[str, Any]:
    """What a `config.json` that leaves out every default says."""
    return {**config.to_diff_dict(), **SIZES, "model_type": config.model_type}


@pytest.mark.parametrize("kind", FAMILIES)
def test_parameters_are_counted_exactly(kind: str) -> None:
    config = small_config(kind)
    raw = as_stored(config) | {"num_key_value_heads": config.num_key_value_heads}
    assert TargetShape.from_config(raw).parameters == built(config).num_parameters()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 16, "attention_bias": True}),
        ("gemma2", {"tie_word_embeddings": False}),
        ("cohere", {"use_qk_norm": True}),
        ("glm4", {"attention_bias": True}),
        ("deepseek_v3", {"q_lora_rank": 10, "attention_bias": True}),
        ("gemma4_text", {"attention_bias": True, "global_head_dim": 32, "head_dim": 16}),
        ("gemma4_text", {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
        ("gemma4_text", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
        ("gemma4_text", {"hidden_size_per_layer_input": 0, **GEMMA4_EXPERTS}),
    ],
)
def test_options_count(kind: str, more: dict[str, Any]) -> None:
    config = small_config(kind, **more)
    assert TargetShape.from_config(config.to_dict()).parameters == built(config).num_parameters()


@pytest.mark.parametrize("image", [{}, {"vision_use_head": False, "image_size": 28}])
def test_an_image_model_is_counted_with_its_image_part(image: dict[str, Any]) -> None:
    """Its published configs give few of the text part's sizes."""
    text = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 8}
    vision = {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 2} | image
    raw = {
        "model_type": "gemma3",
        "torch_dtype": "float32",
        "text_config": text,
        "vision_config": {**vision, "num_hidden_layers": 3, "patch_size": 14},
    }
    config = CONFIG_MAPPING["gemma3"].from_dict(raw)
    shape = TargetShape.from_config(raw)
    assert shape.parameters == built(config).num_parameters()
    assert shape.active_parameters == built(config.text_config).num_parameters()
    assert (shape.vocab_size, shape.draft_heads) == (262_208, (8, 4, 256))
    assert (shape.model_type, shape.checkpoint_bytes) == ("gemma3", 4)


def test_only_the_experts_that_a_token_goes_through_are_active() -> None:
    shape = TargetShape.from_config(small_config("mixtral").to_dict())
    experts = 8 * 6 * 3 * 24 * 40
    inactive = experts - experts * 2 // 6
    assert shape.active_parameters == shape.parameters - inactive - 96 * 24
    tied = TargetShape.from_config(small_config("gemma").to_dict())
    assert tied.active_parameters == tied.parameters


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_oss", "deepseek_v2"])
def test_the_draft_is_the_one_that_is_trained(kind: str) -> None:
    config = small_config(kind)
    fitting = DraftConfig.for_target(config, (2, 4, 5), 32)
    draft = Draft(fitting, torch.empty(96, 24, device="meta"))
    shape = DraftShape.for_target(TargetShape.from_config(config.to_dict()), 32)
    assert shape.parameters == sum(p.numel() for p in draft.parameters())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"model_type": "mamba"}, "llama, mistral"),
        ({}, "model_type"),
        ({"model_type": "llama", "hidden_size": 8}, "no num_hidden_layers"),
        ({"model_type": "gemma3", "text_config": 3}, "sizes that cannot be"),
        ({"model_type": "llama", **SIZES, "vocab_size": "many"}, "sizes that cannot be"),
        ({"model_type": "llama", **SIZES, "num_attention_heads": 0}, "sizes that cannot be"),
        ({"model_type": "llama", **SIZES, "num_hidden_layers": 10**9}, "layers is 1,000,000,000"),
        ({"model_type": "llama", **SIZES, "max_position_embeddings": "x"}, "embeddings: Input sh"),
    ],
)
def test_what_cannot_be_counted_says_why(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(UnknownShape, match=words):
        TargetShape.from_config(raw)


def test_facts_of_a_resolved_target_are_enough() -> None:
    facts = {
        "parameters": 134_515_008,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "num_layers": 30,
        "dtype": "float32",
    }
    shape = TargetShape.from_facts(facts)
    assert shape.checkpoint_bytes == 4
    assert DraftShape.for_target(shape, 8192).parameters > 8192 * 576
    with pytest.raises(UnknownShape, match="num_layers"):
        TargetShape.from_facts({k: v for k, v in facts.items() if k != "num_layers"})


def test_a_gemma_4_is_counted_from_a_config_that_names_its_full_layers_heads() -> None:
    """Published configs name `global_head_dim`; transformers writes the heads of each layer."""
    config = small_config("gemma4_text", num_kv_shared_layers=2, global_head_dim=32, head_dim=16)
    raw = as_stored(config) | {"global_head_dim": 32}
    raw.pop("per_layer_config")
    shape = TargetShape.from_config(raw)
    assert shape.parameters == built(config).num_parameters()
    # of 8 layers two share; of the others one is of full attention: 2 * 2 heads of 32, and of 16
    assert shape.cache_width == -(-(5 * 64 + 128) // 8)
    assert shape.draft_heads == (4, 2, 16)
