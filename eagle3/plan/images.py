"""Image models that are targets by their text part: its sizes, and what is loaded beside it.

`resolve` loads the whole checkpoint, so a plan counts the image part's weights as memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_PARTS = {"gemma3": "gemma3_text"}
"""By `model_type`: that of the text part."""

_OF_BOTH = ("dtype", "torch_dtype", "tie_word_embeddings")
"""What the config says once, for all its parts."""

_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "vision_use_head": True,
}


def text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the part that writes text: all of it, but of an image model."""
    kind = TEXT_PARTS.get(str(raw.get("model_type")))
    if kind is None:
        return raw
    shared = {name: raw[name] for name in _OF_BOTH if name in raw}
    return {**(raw.get("text_config") or {}), **shared, "model_type": kind}


def image_parameters(raw: Mapping[str, Any], width: int) -> int:
    """Parameters of the image part (SigLIP, and Gemma 3's projection); 0 of a text model.

    Args:
        width: the text part's hidden size.
    """
    if str(raw.get("model_type")) not in TEXT_PARTS:
        return 0
    c = {**_SIGLIP, **(raw.get("vision_config") or {})}
    hidden, patch = c["hidden_size"], c["patch_size"]
    embedding = hidden * (c["num_channels"] * patch**2 + 1 + (c["image_size"] // patch) ** 2)
    attention = 4 * hidden * (hidden + 1)
    mlp = 2 * hidden * c["intermediate_size"] + c["intermediate_size"] + hidden
    layers = c["num_hidden_layers"] * (attention + mlp + 4 * hidden)
    pooling = bool(c["vision_use_head"]) * (attention + mlp + 3 * hidden)
    projection = hidden * width + hidden
    return int(embedding + layers + 2 * hidden + pooling + projection)
