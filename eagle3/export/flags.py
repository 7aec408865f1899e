"""What a draft's config may not ask for: variations of EAGLE-3 that this package's draft has not.

An engine that does not know such a flag ignores it and drafts badly; so does this package if it
reads on. Each is refused by name, and the message says which engines would have heeded it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """A key of a draft's config."""

    have: tuple[Any, ...]
    """The values that this package's draft has; a key that is absent is always one of them."""
    meaning: str
    engines: tuple[str, ...] = ()
    """Those that heed another value; others ignore it."""


FLAGS = {
    "norm_before_residual": Flag(
        (False,), "the residual stream is the normed feature", ("vllm", "llamacpp")
    ),
    "norm_before_fc": Flag(
        (False,), "a norm over the fused features before `fc`", ("vllm", "sglang", "llamacpp")
    ),
    "fc_norm": Flag((False,), "a norm of each captured feature before `fc`", ("vllm", "sglang")),
    "use_aux_norm": Flag((False,), "an older name of fc_norm", ("sglang",)),
    "norm_output": Flag((False,), "feeds back its output after the norm", ("vllm", "sglang")),
    "num_hidden_layers": Flag((1,), "more than one decoder layer", ("vllm", "sglang")),
    "num_aux_hidden_states": Flag((3,), "captures more or fewer layers", ("vllm", "sglang")),
    "attention_bias": Flag((False,), "biases of queries, keys and values", ("vllm",)),
    "mlp_bias": Flag((False,), "biases of the MLP", ("vllm",)),
    "bias": Flag((False,), "a bias of `fc`", ("sglang",)),
    "hidden_act": Flag(("silu",), "another activation of the MLP"),
    "logit_scale": Flag((1.0,), "scaled logits", ("vllm",)),
    "tie_word_embeddings": Flag((False,), "the embedding is the head", ("sglang",)),
    "use_input_layernorm_in_first_layer": Flag((True,), "no norm of the embedding"),
    "use_last_layernorm": Flag((True,), "no norm before the head"),
    "use_mtp_layernorm": Flag((False,), "a further norm of the features"),
    "parallel_draft_step": Flag((1,), "drafts several tokens in one forward", ("vllm",)),
    "use_aux_hidden_state": Flag((True,), "reads the last hidden state alone (EAGLE-1)"),
    "quantization_config": Flag((None,), "quantised weights", ("vllm", "sglang")),
}


def unsupported(raw: dict[str, Any]) -> Iterator[str]:
    """What of a `config.json` this package's draft has not; `eagle_config` and the layer's own
    config of the speculators layout included."""
    for part in (raw, raw.get("eagle_config") or {}, raw.get("transformer_layer_config") or {}):
        for name, flag in FLAGS.items():
            value = part.get(name)
            if value is not None and value not in flag.have:
                heeded = ", ".join(flag.engines) or "no engine"
                yield f"{name} is {value}: {flag.meaning} (heeded by {heeded})"
