"""What a draft takes from its target, at the sizes of published models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eagle3 import fit

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def config(**values: Any) -> Any:
    return SimpleNamespace(**{"hidden_size": 4096, "num_attention_heads": 32, **values})


@pytest.mark.parametrize(
    ("hidden", "heads"), [(7168, (56, 8, 128)), (5120, (40, 8, 128)), (2048, (16, 8, 128))]
)
def test_latent_attention_gets_plain_heads_as_wide_as_the_hidden_state(
    hidden: int, heads: tuple[int, int, int]
) -> None:
    deepseek = config(hidden_size=hidden, num_attention_heads=128, kv_lora_rank=512, head_dim=64)
    assert fit.heads(deepseek) == heads


def test_other_heads_are_the_targets_own() -> None:
    assert fit.heads(config()) == (32, 32, 128)
    assert fit.heads(config(num_key_value_heads=8, head_dim=None)) == (32, 8, 128)
    gpt_oss = config(hidden_size=2880, num_attention_heads=64, num_key_value_heads=8, head_dim=64)
    assert fit.heads(gpt_oss) == (64, 8, 64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rope_parameters": LLAMA3}, LLAMA3),
        ({"rope_parameters": YARN}, YARN),
        ({"rope_parameters": YARN, "kv_lora_rank": 512}, PLAIN),
        ({"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, PLAIN),
        ({"rope_parameters": {**PLAIN, "rope_type": "longrope", "long_factor": [1.0]}}, PLAIN),
        ({"rope_parameters": {"sliding_attention": PLAIN, "full_attention": LLAMA3}}, LLAMA3),
        ({"rope_parameters": None}, PLAIN),
        ({}, PLAIN),
    ],
)
def test_rotary_positions_are_what_a_llama_layer_can_have(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert fit.rope(config(**values)) == expected


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ({"intermediate_size": 14336}, 14336),
        ({"intermediate_size": 2880, "num_local_experts": 32, "hidden_size": 2880}, 11520),
        ({"intermediate_size": 6144, "num_experts": 128, "hidden_size": 2048}, 6144),
        ({"intermediate_size": 32, "hidden_size": 64}, 32),
        ({}, 16384),
    ],
)
def test_the_mlp_is_not_as_narrow_as_one_of_many_experts(
    values: dict[str, Any], width: int
) -> None:
    assert fit.mlp_width(config(**values)) == width


def test_the_epsilon_of_any_norm() -> None:
    assert fit.norm_eps(config(rms_norm_eps=1e-5)) == 1e-5
    assert fit.norm_eps(config(layer_norm_eps=1e-4)) == 1e-4
    assert fit.norm_eps(config()) == 1e-6


def test_a_context_ends_where_rotary_positions_would_change() -> None:
    longrope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert fit.context_length(config(max_position_embeddings=131072, rope_parameters=LLAMA3)) == (
        131072
    )
    assert fit.context_length(config(max_position_embeddings=131072, rope_parameters=longrope)) == (
        4096
    )
    with pytest.raises(ValueError, match="max_position_embeddings is missing"):
        fit.context_length(config())
