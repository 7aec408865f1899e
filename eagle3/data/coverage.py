"""How much of what the target says a draft vocabulary can say.

Shapes: R rows, H hidden size, V target vocabulary, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3.data.features import FeatureIndex, Sample
from eagle3.data.offline import FeatureStore
from eagle3.data.records import Response, read_json

MOST_ROWS = 1024
"""Rows that are enough for a share: its standard error is then below 0.5% for a share of 97%."""

HEADS = ("lm_head.weight", "embed_tokens.weight")
"""Ends of the LM head's name, and of the embedding's where that is the head too."""


def answer_share(found: Iterable[Response], kept_D: Tensor, limit: int) -> float:
    """The share of answer tokens that the draft vocabulary holds."""
    inside = set(kept_D.tolist())
    answers = [i for r in found for a, b in r.spans for i in r.ids[a : min(b, limit)]]
    return sum(i in inside for i in answers) / max(1, len(answers))


def mass_share(features: Path, target: Path, kept_D: Tensor) -> float | None:
    """The target's mean probability mass inside the draft vocabulary, over held-out answers.

    Args:
        features: output of `extract`.
        target: the target's directory; only its LM head is read.

    Returns:
        None where no features are stored, or the head is not a plain matrix in the files.
    """
    if FeatureIndex.read(features).mode != "offline":
        return None
    store = FeatureStore.open(features)
    config = read_json(target / "config.json")
    text = config.get("text_config", config)
    head_DH: Tensor | None = None
    mass, rows = 0.0, 0
    for ref in store.samples("heldout"):
        sample = store.load(ref)
        if sample.top is None and head_DH is None:
            head_VH = _head(target)
            if head_VH is None:
                return None
            head_DH = head_VH[kept_D].float()
        found_R = _inside(sample, kept_D, head_DH, text)
        mass, rows = mass + float(found_R.sum()), rows + len(found_R)
        if rows >= MOST_ROWS:
            break
    return mass / rows if rows else None


@torch.inference_mode()
def _inside(
    sample: Sample, kept_D: Tensor, head_DH: Tensor | None, config: dict[str, Any]
) -> Tensor:
    """Mass inside on each row whose logits are known, [R]."""
    at = (sample.argmax >= 0).nonzero()[:, 0]
    if head_DH is None:
        assert sample.top is not None
        top = sample.top[at]  # a lower bound: what was not kept may lie inside, too
        return (top.probs * torch.isin(top.ids, kept_D)).sum(-1)
    logits_RD = sample.hidden[at].float() @ head_DH.T
    cap = config.get("final_logit_softcapping")
    if cap is not None:
        logits_RD = cap * torch.tanh(logits_RD / cap)
    return (logits_RD.logsumexp(-1) - sample.lse[at]).exp().clamp(max=1)


def _head(target: Path) -> Tensor | None:
    """The LM head, [V, H], read alone out of the target's files."""
    for name in HEADS:
        for file in sorted(target.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                found = [key for key in tensors.keys() if key.endswith(name)]
                if len(found) == 1:
                    head: Tensor = tensors.get_tensor(found[0])
                    return head if head.is_floating_point() else None
    return None
