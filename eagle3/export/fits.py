"""What a serving engine asks of a draft, checked before a file is written for it.

None of the engines says so when it gets what it does not support: it loads, and drafts badly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3 import fit
from eagle3.draft import DraftConfig
from eagle3.errors import BadInput
from eagle3.export.layers import check_sglang

ROPE = ("default", *fit.SCALED_ALIKE)

YARN_KEYS = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"}
"""Beyond these, implementations of yarn differ in what they read and assume."""

HEAD_STEP = {"vllm": 8, "sglang": 8, "llamacpp": 2, "openvino": 2}
"""A head's width is a multiple of this: of 8 in the attention kernels on GPUs, of 2 for rotary
positions."""

WIDEST_HEAD = 256
"""That every attention kernel of vLLM takes."""


def check(config: DraftConfig, engine: str, target: Any, num_layers: int) -> None:
    """Refuse a draft that an engine would load and serve badly.

    Args:
        target: the target's text config.
        num_layers: of the target.

    Raises:
        BadInput: with everything that does not fit.
    """
    if found := list(problems(config, engine, target, num_layers)):
        raise BadInput(
            f"the draft does not fit this target in {engine}: " + "; ".join(found),
            "choose another engine, or train a draft for this target",
        )
    if engine == "sglang":
        check_sglang(target.model_type, config.capture_layers, num_layers)


def problems(c: DraftConfig, engine: str | None, target: Any, num_layers: int) -> Iterator[str]:
    """What does not fit, of an engine or, where None, of any."""
    context = fit.context_length(target)
    wanted = {
        "hidden_size": (c.hidden_size, target.hidden_size),
        "vocab_size": (c.vocab_size, target.vocab_size),
        "max_position_embeddings": (c.max_position_embeddings, context),
        "hidden_act": (c.hidden_act, "silu"),
    }
    for name, (there, here) in wanted.items():
        if there != here:
            yield f"{name} is {there}, expected {here}"
    if not 0 < c.capture_layers[0] < c.capture_layers[1] < c.capture_layers[2] < num_layers:
        yield (
            f"it captures layers {c.capture_layers}, expected three ascending ones "
            f"between 1 and {num_layers - 1}"
        )
    if c.num_attention_heads % c.num_key_value_heads:
        yield f"{c.num_attention_heads} heads do not share {c.num_key_value_heads} keys evenly"
    step = HEAD_STEP[engine] if engine else 2
    if c.head_dim % step or c.head_dim > WIDEST_HEAD:
        yield f"head_dim is {c.head_dim}, expected a multiple of {step}, {WIDEST_HEAD} at most"
    rope = c.rope_parameters
    kind = rope["rope_type"]
    if kind not in ROPE:
        yield f"rotary positions are {kind}, expected one of {', '.join(ROPE)}"
    if (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        yield "rotary positions cover a part of each head, expected all of it"
    extra = sorted(k for k, v in rope.items() if k not in YARN_KEYS and v is not None)
    if kind == "yarn" and engine == "llamacpp" and extra:
        yield f"rotary positions set {', '.join(extra)}, which llama.cpp reads otherwise"
