"""Does this engine run the target exactly? A short forward against transformers' own attention.

Shapes: B sequences, L tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3.data.architecture import Layers
from eagle3.data.local import default_device
from eagle3.draft import Draft, DraftCache, DraftConfig
from eagle3.errors import BadInput
from eagle3.load import load_config, load_model
from eagle3.target import Target

TOLERANCE = 1e-3
"""Largest difference, relative to the largest value: float32 kernels round 1e-6 apart."""
SEQUENCES, TOKENS, PREFILL = 2, 24, 16
WINDOW = 6
"""Sliding windows are made as short as this for the comparison, so that it shows that they work."""

DEPTHS = [0, 1, 1, 2]
SEEN = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
STANDS = [0, 2, 3]
"""A tree: a root with two children, the second of which has a child; its branch stands."""


def probe(folder: Path, capture_layers: Layers) -> None:
    """Load the target and compare hidden states, features and logits; rows one by one, too.

    Raises:
        BadInput: tensors are missing or of other shapes, the two disagree, or no draft fits.
    """
    config = load_config(folder)
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
    name = type(model).__name__
    with _named(f"transformers itself cannot run {name}"), torch.inference_mode():
        theirs = model(ids_BL, output_hidden_states=True, use_cache=False)
        states = theirs.hidden_states
        expected = {
            "hidden state": states[-1],
            "captured features": torch.cat([states[i] for i in capture_layers], -1),
            "logits": theirs.logits,
        }
    with _named(f"this engine cannot run {name}"):
        target = Target(model, capture_layers)
        ours = _run(target, ids_BL)
    for what, value in expected.items():
        error = ((ours[what] - value).abs().max() / value.abs().max().clamp(min=1e-12)).item()
        if not error <= TOLERANCE:
            raise BadInput(
                f"this engine cannot run {name} exactly: its {what} differs from that of "
                f"transformers by {error:.1e} (allowed {TOLERANCE:.0e})"
            )
    with _named(f"no EAGLE-3 draft can be made for {name}"):
        _run_draft(target, expected["captured features"][0], ids_BL[0])


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors of code that was not written for each other: models', this engine's.

    Raises:
        BadInput: says what could not be done, and the error.
    """
    try:
        yield
    except (TypeError, AttributeError, ValueError, KeyError, IndexError, RuntimeError) as e:
        raise BadInput(f"{what}: {' '.join(str(e).split()) or type(e).__name__}") from None


def _run_draft(target: Target, features_L3H: Tensor, ids_L: Tensor) -> None:
    """A draft of this target's sizes and rotary positions."""
    config = DraftConfig.for_target(target.config, target.capture_layers, 2, 8)
    draft = Draft(config, target.embed.weight.detach()).to(target.device)
    with torch.inference_mode():
        rows = len(ids_L)
        positions = torch.arange(rows, device=target.device)
        draft(ids_L, draft.fuse(features_L3H), positions, DraftCache(rows))


@torch.inference_mode()
def _run(target: Target, ids_BL: Tensor) -> dict[str, Tensor]:
    """A prefill; a tree, of which one branch stands; then one row at a time over the cache."""
    cache = target.new_cache(TOKENS + len(DEPTHS), SEQUENCES)
    hidden, features = [], []

    def run(rows: Tensor, stand: list[int], **place: Any) -> None:
        hidden_BLH, features_BLF = target.forward(rows, cache, capture=True, **place)
        assert features_BLF is not None
        cache.keep(stand)
        hidden.append(hidden_BLH[:, stand])
        features.append(features_BLF[:, stand])

    run(ids_BL[:, :PREFILL], list(range(PREFILL)))
    tree_BN = ids_BL[:, : len(DEPTHS)].clone()
    tree_BN[:, STANDS] = ids_BL[:, PREFILL : PREFILL + len(STANDS)]
    depths_N, seen_NN = torch.tensor(DEPTHS), torch.tensor(SEEN, dtype=torch.bool)
    past = torch.ones(len(DEPTHS), PREFILL, dtype=torch.bool)
    run(
        tree_BN,
        STANDS,
        positions_BL=(PREFILL + depths_N)[None].to(ids_BL.device),
        mask=torch.cat([past, seen_NN], 1)[None, None].to(ids_BL.device),
    )
    for i in range(PREFILL + len(STANDS), TOKENS):
        run(ids_BL[:, i : i + 1], [0])
    whole = torch.cat(hidden, 1)
    return {
        "hidden state": whole,
        "captured features": torch.cat(features, 1),
        "logits": target.logits(whole),
    }
