"""What an engine would load and serve badly is refused before it is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import LlamaConfig

from eagle3.draft import DraftConfig
from eagle3.errors import BadInput
from eagle3.export import fits
from eagle3.export.layers import ENGINES

TARGET = LlamaConfig(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
)
DRAFT = DraftConfig.for_target(TARGET, (2, 6, 9), 30)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_draft_of_this_target_fits(engine: str) -> None:
    fits.check(DRAFT, engine, TARGET, 12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hidden_size": 64}, "hidden_size is 64, expected 32"),
        ({"vocab_size": 41}, "vocab_size is 41, expected 40"),
        ({"max_position_embeddings": 64}, "max_position_embeddings is 64, expected 128"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu"),
        ({"capture_layers": (2, 6, 12)}, "between 1 and 11"),
        ({"capture_layers": (0, 6, 9)}, "between 1 and 11"),
        ({"capture_layers": (6, 6, 9)}, "three ascending ones"),
        ({"num_key_value_heads": 3}, "do not share 3 keys evenly"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"head_dim": 512}, "256 at most"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rotary positions are longrope"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "a part of each head",
        ),
    ],
)
def test_what_no_engine_serves_is_refused(engine: str, change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        fits.check(replace(DRAFT, **change), engine, TARGET, 12)


def test_head_dim_of_the_kernels_on_gpus() -> None:
    narrow = replace(DRAFT, head_dim=12)
    fits.check(narrow, "llamacpp", TARGET, 12)
    for engine in ("vllm", "sglang"):
        with pytest.raises(BadInput, match="a multiple of 8"):
            fits.check(narrow, engine, TARGET, 12)


def test_yarn_with_settings_that_llama_cpp_reads_otherwise() -> None:
    plain = replace(DRAFT, rope_parameters=YARN)
    tuned = replace(DRAFT, rope_parameters=YARN | {"attention_factor": 1.1})
    fits.check(plain, "llamacpp", TARGET, 12)
    fits.check(tuned, "vllm", TARGET, 12)
    with pytest.raises(BadInput, match="attention_factor"):
        fits.check(tuned, "llamacpp", TARGET, 12)


def test_everything_that_differs_is_said_at_once() -> None:
    with pytest.raises(BadInput, match="hidden_size is 64, expected 32; vocab_size is 41"):
        fits.check(replace(DRAFT, hidden_size=64, vocab_size=41), "vllm", TARGET, 12)
