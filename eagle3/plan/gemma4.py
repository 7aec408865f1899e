"""How many weights a Gemma 4 text model has: its layers differ from one another.

Full-attention layers have wider heads than sliding ones, and may have one product for keys and
values; the last layers may take keys and values from earlier ones; each layer may have an embedding
of its own, and experts beside its MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

DEFAULTS: Config = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "global_head_dim": 512,
}
"""As transformers has them."""


def outside(c: Config) -> tuple[int, int]:
    """Parameters beside layers, embedding, head and final norm, and those that one token uses: the
    layers' own embeddings, and what is mixed into them."""
    hidden, wide = c["hidden_size"], c["hidden_size_per_layer_input"] or 0
    together = c["num_hidden_layers"] * wide
    used = hidden * together + wide
    return c["vocab_size_per_layer_input"] * together + used, used


def layer(c: Config, index: int) -> tuple[int, int]:
    """Parameters of a layer, and those that one token uses."""
    hidden, own = c["hidden_size"], c["hidden_size_per_layer_input"] or 0
    shares = _shares(c, index)
    width = c["intermediate_size"] * (2 if c["use_double_wide_mlp"] and shares else 1)
    plain = _attention(c, index) + 3 * hidden * width + 4 * hidden
    if own:
        plain += 2 * hidden * own + hidden
    if not c["enable_moe_block"]:
        return plain, plain
    expert = 3 * hidden * c["moe_intermediate_size"]
    plain += c["num_experts"] * (hidden + 1) + hidden + 3 * hidden  # router, and three norms
    return plain + c["num_experts"] * expert, plain + c["top_k_experts"] * expert


def cache_width(c: Config) -> int:
    """Numbers that one token adds to a layer's cache, mean over layers, rounded up."""
    layers = c["num_hidden_layers"]
    kept = [2 * _keys(c, index) for index in range(layers) if not _shares(c, index)]
    return -(-sum(kept) // layers)


def _attention(c: Config, index: int) -> int:
    hidden, dim = c["hidden_size"], _heads(c, index)[0]
    wide, narrow = c["num_attention_heads"] * dim, 0
    if not _shares(c, index):
        one = c["attention_k_eq_v"] and _full(c, index)
        narrow = _keys(c, index) * (1 if one else 2)
    biases = bool(c["attention_bias"]) * (wide + narrow + hidden)
    norms = dim if narrow == 0 else 2 * dim
    return int(2 * hidden * wide + hidden * narrow + biases + norms)


def _keys(c: Config, index: int) -> int:
    dim, groups = _heads(c, index)
    return dim * groups


def _heads(c: Config, index: int) -> tuple[int, int]:
    """head_dim, and key/value heads; written out by layer, or for all layers of full attention."""
    dim, groups = c["head_dim"], c["num_key_value_heads"]
    if "per_layer_config" in c:
        said = {int(at): config for at, config in c["per_layer_config"].items()}.get(index, {})
        return said.get("head_dim", dim), said.get("num_key_value_heads", groups)
    if not _full(c, index):
        return dim, groups
    if c["attention_k_eq_v"]:
        groups = c.get("num_global_key_value_heads") or groups
    return c["global_head_dim"], groups


def _full(c: Config, index: int) -> bool:
    """Every sixth layer, where the config does not say; the last one always."""
    if index == c["num_hidden_layers"] - 1:
        return True
    types = c.get("layer_types")
    return (index + 1) % 6 == 0 if types is None else types[index] == "full_attention"


def _shares(c: Config, index: int) -> bool:
    """Whether a layer takes keys and values from an earlier one."""
    return bool(index >= c["num_hidden_layers"] - c["num_kv_shared_layers"])
