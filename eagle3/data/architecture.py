"""Can this architecture be a target? Told from the config alone, on a model without weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from eagle3.draft import Draft, DraftConfig
from eagle3.errors import BadInput
from eagle3.fit import context_length
from eagle3.target import default_capture_layers

Layers = tuple[int, int, int]

ATTENTION = {"full_attention", "sliding_attention"}
"""Kinds of layers, in transformers' words, whose memory is keys and values, a row a token."""

STATE = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"}
"""Kinds of layers with a state that sums up all tokens so far."""


def check_structure(config: Any, capture_layers: Layers | None) -> Layers:
    """The layers to capture, when the model is a plain stack of attention layers that a draft fits.

    Raises:
        BadInput: names the part that this engine does not run.
    """
    model = skeleton(config)
    text = config.get_text_config()
    name = type(model).__name__
    _check_memory(name, model, text)
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise BadInput(f"{name} has no decoder layers where this engine looks (decoder.layers)")
    try:
        context_length(text)
    except ValueError as e:
        raise BadInput(str(e)) from None
    chosen = check_capture(len(layers), capture_layers)
    _check_draft(name, model, text, chosen)
    return chosen


def skeleton(config: Any) -> Any:
    """The model without weights (on torch's meta device): takes no memory, and seconds at most.

    Raises:
        BadInput: transformers cannot build it.
    """
    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except Exception as e:  # as each model's own code has it
            raise BadInput(
                f"transformers cannot build the target from its config: {' '.join(str(e).split())}"
            ) from None


def check_capture(num_layers: int, capture_layers: Layers | None) -> Layers:
    """The recipe's captured layers, or the default ones.

    Raises:
        BadInput: too few layers, or not three different ones in ascending order.
    """
    if capture_layers is None:
        try:
            return default_capture_layers(num_layers)
        except ValueError as e:
            raise BadInput(
                str(e), "name three different layers: extract.capture_layers in the recipe"
            ) from None
    low, middle, high = capture_layers
    if not 0 <= low < middle < high < num_layers:
        raise BadInput(
            f"extract.capture_layers {list(capture_layers)}: expected three different layers in "
            f"ascending order, each from 0 to {num_layers - 1}"
        )
    return capture_layers


def _check_memory(name: str, model: Any, config: Any) -> None:
    """All that the model remembers must be rows, one a token: these can be rolled back."""
    kinds = set(getattr(config, "layer_types", None) or [])
    state = sorted(kinds & STATE)
    if state or getattr(model, "_is_stateful", False):
        which = f" (layers of type {', '.join(state or sorted(kinds))})" if state or kinds else ""
        raise BadInput(
            f"{name} is a recurrent or linear-attention model{which}: it sums up what it has read "
            "in a state, out of which a rejected draft token cannot be taken again",
            "expected a model whose layers all attend to keys and values of single tokens",
        )
    other = sorted(kinds - ATTENTION)
    if other:
        raise BadInput(
            f"{name} has layers of type {', '.join(other)}, which this engine does not run; "
            f"expected {' or '.join(sorted(ATTENTION))}"
        )


def _check_draft(name: str, model: Any, config: Any, layers: Layers) -> None:
    """The head must be a plain product, and a draft of these sizes must be possible."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise BadInput(f"{name} has no LM head that is one matrix")
    if head.bias is not None:
        raise BadInput(f"{name} has an LM head with a bias, which serving engines' drafts have not")
    try:
        with torch.device("meta"):
            fitting = DraftConfig.for_target(config, layers, 2)
            Draft(fitting, model.get_input_embeddings().weight)
    except (TypeError, AttributeError, ValueError, KeyError, RuntimeError) as e:
        raise BadInput(f"no EAGLE-3 draft can be made for {name}: {e}") from None
