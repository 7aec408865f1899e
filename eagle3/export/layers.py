"""Which layers a draft captures, in the words of each engine and of each tool that trains drafts.

Here a captured layer is an index into HF `hidden_states`: `hs[0]` is the embedding, `hs[k]` the
residual stream that enters layer k, for a target of n layers. Others count differently, and an
engine that captures one layer off drafts badly without a word. This is the only place that knows
how others count; `docs/export.md` has the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.errors import BadInput

LAYER_KEY = "eagle_aux_hidden_state_layer_ids"

Layers = tuple[int, int, int]


@dataclass(frozen=True)
class Reading:
    """How somebody reads a draft's list of layers."""

    shift: int
    """A listed k stands for `hs[k + shift]`."""
    default_shift: int
    """Without a list: `hs[2 + s]`, `hs[n // 2 + s]`, `hs[n - 3 + s]`."""
    where: str
    """Where the list stands."""

    def captured(self, listed: Sequence[int] | None, num_layers: int) -> Layers:
        """The layers that a list, or none, stands for."""
        if listed is None:
            low, mid, high = (k + self.default_shift for k in default(num_layers))
        else:
            low, mid, high = (k + self.shift for k in listed)
        return low, mid, high

    def listed(self, layers: Layers, num_layers: int) -> list[int] | None:
        """What to write so that these layers are captured; None where no list says the same."""
        if self.captured(None, num_layers) == layers:
            return None
        return [k - self.shift for k in layers]


ENGINES = {
    "vllm": Reading(0, 0, f"`{LAYER_KEY}`"),
    "llamacpp": Reading(0, 0, "`eagle3.target_layers` of the GGUF, always"),
    "sglang": Reading(1, 0, f"`eagle_config.{LAYER_KEY}`"),
    "openvino": Reading(1, 1, "`hidden_layers_list` of the IR"),
}
"""vLLM 0.32.0, llama.cpp b11434, SGLang 0.5.23, OpenVINO GenAI 2026.4.1."""

TOOLS = {
    "updraft": Reading(0, 0, f"`{LAYER_KEY}`"),
    "eagle": Reading(0, 0, "no list"),
    "angelslim": Reading(0, 0, f"`{LAYER_KEY}`, as vLLM"),
    "speculators": Reading(0, 0, f"`{LAYER_KEY}`"),
    "specforge": Reading(1, 0, f"`eagle_config.{LAYER_KEY}`"),
    "modelopt": Reading(1, 0, f"`eagle_config.{LAYER_KEY}`"),
}

SGLANG_BY_FIRST = ("deepseek", "kimi", "glm4_moe_lite")
"""Targets of which SGLang 0.5.23 adds 1 to the list only where it begins with 1."""


def default(num_layers: int) -> Layers:
    """What a config without a list means to every tool, and to every engine but OpenVINO."""
    return 2, num_layers // 2, num_layers - 3


def check_sglang(model_type: str, layers: Layers, num_layers: int) -> None:
    """Refuse layers that SGLang would read otherwise for this family of targets.

    Raises:
        BadInput: it would capture the layers one too early.
    """
    listed = ENGINES["sglang"].listed(layers, num_layers)
    if listed is not None and model_type.startswith(SGLANG_BY_FIRST) and listed[0] != 1:
        raise BadInput(
            f"SGLang reads a list of layers of {model_type} targets as it stands, unless it begins "
            f"with 1; so {layers} cannot be written for it and for other engines alike",
            f"train on the default layers {default(num_layers)}, or on (2, …)",
        )
