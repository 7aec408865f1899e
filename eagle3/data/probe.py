"""Does this engine run the target exactly? A short forward against transformers' own attention.

Shapes: B sequences, L tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig

from eagle3.data.architecture import Layers
from eagle3.data.local import default_device
from eagle3.draft import Draft, DraftCache, DraftConfig
from eagle3.errors import BadInput
from eagle3.load import load_model
from eagle3.target import Target

TOLERANCE = 1e-3
"""Largest difference, relative to the largest value: float32 kernels round 1e-6 apart."""
SEQUENCES, TOKENS, PREFILL = 2, 24, 16
WINDOW = 6
"""Sliding windows are made as short as this for the comparison, so that it shows that they work."""


def probe(folder: Path, capture_layers: Layers) -> None:
    """Load the target and compare hidden states, features and logits; rows one by one, too.

    Raises:
        BadInput: tensors are missing or of other shapes, the two disagree, or no draft fits.
    """
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    text = config.get_text_config()
    if getattr(text, "sliding_window", None):
        text.sliding_window = WINDOW
    model, info = load_model(
        folder,
        device=default_device(),
        config=config,
        attn_implementation="eager",
        ignore_mismatched_sizes=True,  # refused here, by name
    )
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            raise BadInput(
                f"the weights do not fit the architecture: {kind.replace('_', ' ')} "
                f"{', '.join(map(str, sorted(info[kind])[:3]))}"
            )
    vocab = model.config.get_text_config().vocab_size
    seeded = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(vocab, (SEQUENCES, TOKENS), generator=seeded).to(model.device)
    with torch.inference_mode():
        theirs = model(ids_BL, output_hidden_states=True, use_cache=False)
    states = theirs.hidden_states
    expected = {
        "hidden state": states[-1],
        "captured features": torch.cat([states[i] for i in capture_layers], -1),
        "logits": theirs.logits,
    }
    try:
        target = Target(model, capture_layers)
        ours = _run(target, ids_BL)
    except (TypeError, AttributeError, ValueError, KeyError, IndexError, RuntimeError) as e:
        raise BadInput(f"this engine cannot run {type(model).__name__}: {e}") from None
    for name, value in expected.items():
        error = ((ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-12)).item()
        if not error <= TOLERANCE:
            raise BadInput(
                f"this engine cannot run {type(model).__name__} exactly: its {name} differs from "
                f"that of transformers by {error:.1e} (allowed {TOLERANCE:.0e})"
            )
    _check_draft(target, expected["captured features"][0], ids_BL[0])


def _check_draft(target: Target, features_L3H: Tensor, ids_L: Tensor) -> None:
    """A draft of this target's sizes and rotary positions runs.

    Raises:
        BadInput: this kind of target has something that the draft, a Llama layer, does not have.
    """
    try:
        config = DraftConfig.for_target(target.config, target.capture_layers, 2, 8)
        draft = Draft(config, target.embed.weight.detach()).to(target.device)
        with torch.inference_mode():
            rows = len(ids_L)
            positions = torch.arange(rows, device=target.device)
            draft(ids_L, draft.fuse(features_L3H), positions, DraftCache(rows))
    except (TypeError, AttributeError, ValueError, KeyError, RuntimeError) as e:
        name = type(target.model).__name__
        raise BadInput(f"no EAGLE-3 draft can be made for {name}: {e}") from None


def _run(target: Target, ids_BL: Tensor) -> dict[str, Tensor]:
    """A prefill, then one row at a time over the cache."""
    cache = target.new_cache(TOKENS, SEQUENCES)
    hidden, features = [], []
    for start, end in [(0, PREFILL), *((i, i + 1) for i in range(PREFILL, TOKENS))]:
        hidden_BLH, features_BLF = target.forward(ids_BL[:, start:end], cache, capture=True)
        assert features_BLF is not None
        cache.advance(end - start)
        hidden.append(hidden_BLH)
        features.append(features_BLF)
    whole = torch.cat(hidden, 1)
    return {
        "hidden state": whole,
        "captured features": torch.cat(features, 1),
        "logits": target.logits(whole),
    }
