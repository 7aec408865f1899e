"""How many weights a model has, by its family's layout: exact, from `config.json` alone.

Each family below is a decoder of transformers, described by what sets it apart from Llama. Tests
build a small model of every family and compare parameter by parameter count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3.plan import gemma4

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What sets a decoder apart from Llama's."""

    defaults: Config = field(default_factory=dict)
    """Keys that `config.json` may leave out, where they differ from `DEFAULTS`."""
    bias: str = "all"
    """What has a bias where `attention_bias` says so: `all` projections of attention, or its
    `inputs`. Or `qkv` always, or none, whatever the config says."""
    norms: int = 2
    """Norm weights of hidden size in a layer; the final norm exists where this is not 0."""
    qk_norm: str = ""
    """`head`: a norm weight of head_dim for query and key; `wide`: of all heads together."""
    sinks: bool = False
    """One learned attention sink a head."""
    experts: Callable[[Config, int], Experts | None] = lambda config, layer: None
    """The experts of a layer; None for a plain MLP."""
    latent: bool = False
    """Latent attention (DeepSeek-V2): low-rank projections, and no plain K and V."""
    uneven: bool = False
    """Layers that differ from one another (Gemma 4): `gemma4.py` counts them."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture-of-experts MLP; widths are intermediate sizes."""

    count: int
    used: int
    """Experts that one token goes through."""
    width: int
    shared_width: int = 0
    """Width of the expert that every token goes through."""
    shared_gate: bool = False
    bias: bool = False


@dataclass(frozen=True)
class Count:
    """Parameters of a model."""

    total: int
    active: int
    """Those that one token is multiplied with, the embedding lookup left out."""


MOST_LAYERS = 10_000
"""A config with more is no model's; each layer is counted by itself."""

DEFAULTS: Config = {
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": (),
    "first_k_dense_replace": 0,
}


def count(family: Family, given: Config) -> Count:
    """The parameters of a model.

    Args:
        given: its config, without keys whose value is null.

    Raises:
        KeyError: a size that has no default is missing.
        ValueError: there are more layers than any model has.
    """
    c = {**DEFAULTS, **family.defaults, **given}
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    if layers > MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {layers:,}")
    embedding = c["vocab_size"] * hidden
    total = active = hidden * (family.norms > 0)
    if family.uneven:
        more, used = gemma4.outside(c)
        total, active = total + more, active + used
    for layer in range(layers):
        if family.uneven:
            all_of_it, used = gemma4.layer(c, layer)
            total, active = total + all_of_it, active + used
            continue
        shared = attention(family, c) + family.norms * hidden
        mlp, used = _mlp(family, c, layer)
        total += shared + mlp
        active += shared + used
    tied = bool(c["tie_word_embeddings"])
    return Count(total + embedding * (1 if tied else 2), active + embedding)


def head_dim(c: Config) -> int:
    """Width of an attention head."""
    found: int = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return found


def attention(family: Family, c: Config) -> int:
    """Parameters of one attention layer."""
    if family.latent:
        return _latent_attention(c)
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    wide = heads * head_dim(c)
    narrow = (c.get("num_key_value_heads") or heads) * head_dim(c)
    weights = 2 * hidden * wide + 2 * hidden * narrow
    said = bool(c["attention_bias"])
    inputs = family.bias in ("all", "inputs") and said
    inputs = inputs or (family.bias == "qkv" and c.get("qkv_bias", True))
    biases = inputs * (wide + 2 * narrow) + (family.bias == "all" and said) * hidden
    qk_norm = "wide" if c.get("use_qk_norm") else family.qk_norm
    norms = {"": 0, "head": 2 * head_dim(c), "wide": wide + narrow}[qk_norm]
    return weights + biases + norms + heads * family.sinks


def _latent_attention(c: Config) -> int:
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    key, rank = c["qk_nope_head_dim"], c["kv_lora_rank"]
    wide = heads * (key + c["qk_rope_head_dim"])
    low = c.get("q_lora_rank")
    query = hidden * wide if low is None else low * (hidden + 1 + wide)
    biases = bool(c["attention_bias"]) * ((low or 0) + rank + c["qk_rope_head_dim"] + hidden)
    down = hidden * (rank + c["qk_rope_head_dim"]) + rank
    up = rank * heads * (key + c["v_head_dim"])
    return int(query + down + up + heads * c["v_head_dim"] * hidden + biases)


def _mlp(family: Family, c: Config, layer: int) -> tuple[int, int]:
    """Parameters of a layer's MLP, and those that one token uses."""
    hidden = c["hidden_size"]
    moe = family.experts(c, layer)
    if moe is None:
        width = c["intermediate_size"]
        plain = 3 * hidden * width + bool(c["mlp_bias"]) * (2 * width + hidden)
        return plain, plain
    expert = 3 * hidden * moe.width + moe.bias * (2 * moe.width + hidden)
    common = moe.count * (hidden + moe.bias) + 3 * hidden * moe.shared_width
    common += hidden * moe.shared_gate
    return moe.count * expert + common, moe.used * expert + common


def _mixtral(c: Config, layer: int) -> Experts:
    return Experts(
        count=c["num_local_experts"], used=c["num_experts_per_tok"], width=c["intermediate_size"]
    )


def _gpt_oss(c: Config, layer: int) -> Experts:
    return Experts(
        count=c["num_local_experts"],
        used=c["num_experts_per_tok"],
        width=c["intermediate_size"],
        bias=True,
    )


def _qwen_moe(c: Config, layer: int) -> Experts | None:
    number = c.get("num_experts") or c.get("num_local_experts") or 0
    if layer in c["mlp_only_layers"] or not number or (layer + 1) % c["decoder_sparse_step"]:
        return None
    shared = c.get("shared_expert_intermediate_size") or 0
    return Experts(
        count=number,
        used=c["num_experts_per_tok"],
        width=c["moe_intermediate_size"],
        shared_width=shared,
        shared_gate=shared > 0,
    )


def _deepseek(c: Config, layer: int) -> Experts | None:
    if layer < c["first_k_dense_replace"]:
        return None
    width = c["moe_intermediate_size"]
    return Experts(
        count=c["n_routed_experts"],
        used=c["num_experts_per_tok"],
        width=width,
        shared_width=width * (c.get("n_shared_experts") or 0),
    )


_TIED = {"tie_word_embeddings": True}
_GEMMA = {**_TIED, "head_dim": 256}
_GEMMA3 = {
    **_GEMMA,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
"""The published text and image configs leave out much."""

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(bias=""),
    "mixtral": Family(bias="", experts=_mixtral),
    "granite": Family(),
    "smollm3": Family(defaults=_TIED),
    "phi3": Family(bias=""),
    "qwen2": Family(bias="qkv"),
    "qwen2_moe": Family(bias="qkv", experts=_qwen_moe),
    "qwen3": Family(qk_norm="head", defaults={"head_dim": 128}),
    "qwen3_moe": Family(qk_norm="head", experts=_qwen_moe),
    "gemma": Family(defaults=_GEMMA),
    "gemma2": Family(norms=4, defaults=_GEMMA),
    "gemma3_text": Family(norms=4, qk_norm="head", defaults=_GEMMA3),
    "gemma4_text": Family(uneven=True, defaults=gemma4.DEFAULTS),
    "olmo": Family(norms=0),
    "olmo2": Family(qk_norm="wide"),
    "olmo3": Family(qk_norm="wide"),
    "cohere": Family(norms=1, defaults=_TIED),
    "glm4": Family(norms=4, bias="inputs", defaults={"head_dim": 128}),
    "gpt_oss": Family(
        sinks=True, experts=_gpt_oss, defaults={"attention_bias": True, "head_dim": 64}
    ),
    "deepseek_v2": Family(latent=True, experts=_deepseek),
    "deepseek_v3": Family(latent=True, experts=_deepseek, defaults={"first_k_dense_replace": 3}),
}
"""By `model_type`."""
