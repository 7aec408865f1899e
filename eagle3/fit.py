"""The draft that fits a target: heads, rotary positions and width, from the target's text config.

Serving engines load a draft as a Llama layer of the sizes in its own config. So a draft takes from
its target what a Llama layer can have, and gets a Llama's plain choice for the rest.
"""

from __future__ import annotations

from typing import Any

SCALED_ALIKE = ("linear", "llama3", "yarn")
"""Rotary scalings that every engine computes alike from the config alone. `longrope` and `dynamic`
depend on the length that an engine is started with; others are not a Llama's."""

DEFAULT_THETA = 10000.0
HEAD_DIMS = (128, 64, 32, 16, 8)
MOST_KV_HEADS = 8


def heads(config: Any) -> tuple[int, int, int]:
    """Query heads, key/value heads and head_dim of the draft: the target's own.

    Multi-head latent attention (DeepSeek) has no head_dim of this kind, and its heads together are
    far wider than the hidden state. The draft gets heads of 128, or the next smaller size that
    divides the hidden size, as many as make up the hidden size, in at most 8 groups. Where layers
    differ in their heads (Gemma 4), the first layer's count.
    """
    if getattr(config, "is_heterogeneous", False):
        config = config.per_layer_config[0]
    if getattr(config, "kv_lora_rank", None) is not None:
        hidden: int = config.hidden_size
        dim = next((d for d in HEAD_DIMS if hidden % d == 0), hidden)
        count = hidden // dim
        groups = max(n for n in range(1, MOST_KV_HEADS + 1) if count % n == 0)
        return count, groups, dim
    count = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // count
    return count, getattr(config, "num_key_value_heads", None) or count, dim


def rope(config: Any) -> dict[str, Any]:
    """Rotary positions of the draft, in the form of a Llama config's `rope_parameters`.

    The target's own, where a Llama has them and engines agree on them; otherwise unscaled ones of
    the target's base: a draft is trained within the unscaled context anyway. Of two kinds of layers
    (Gemma 3) the full-attention ones count, for a draft attends to everything.
    """
    found = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in found.values()):
        found = found.get("full_attention") or next(v for v in found.values() if v)
    theta = found.get("rope_theta") or DEFAULT_THETA
    mla = getattr(config, "kv_lora_rank", None) is not None
    partial = (found.get("partial_rotary_factor") or 1.0) != 1.0
    if found.get("rope_type") not in SCALED_ALIKE or mla or partial:
        return {"rope_type": "default", "rope_theta": theta}
    return dict(found)


def mlp_width(config: Any) -> int:
    """Width of the draft's MLP: that of the target's dense MLP.

    Where that is the width of one of many experts (narrower than two hidden sizes: gpt-oss, OLMoE),
    or unknown, four hidden sizes.
    """
    hidden: int = config.hidden_size
    width: int | None = getattr(config, "intermediate_size", None)
    experts = any(
        getattr(config, name, None)
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )
    return 4 * hidden if width is None or (experts and width < 2 * hidden) else width


def norm_eps(config: Any) -> float:
    """Epsilon of the draft's RMS norms: the target's, whatever its norms are called."""
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        eps: float | None = getattr(config, name, None)
        if eps is not None:
            return eps
    return 1e-6


def context_length(config: Any) -> int:
    """Tokens that the target reads at most, prompt and answer together.

    With `longrope` and `dynamic` rotary positions a longer sequence changes the positions of all
    its tokens, cached ones too; there, the length up to which nothing changes.

    Raises:
        ValueError: the config does not say.
    """
    longest: int | None = getattr(config, "max_position_embeddings", None)
    if longest is None:
        raise ValueError("max_position_embeddings is missing from the target's config")
    found = getattr(config, "rope_parameters", None) or {}
    if found.get("rope_type") not in ("longrope", "dynamic"):
        return longest
    before = found.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    return min(longest, before) if before else longest
