"""How much of what the target says a draft vocabulary can say.

Shapes: R rows, H hidden size, V target vocabulary, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3.data.features import FeatureIndex, Sample
from eagle3.data.offline import FeatureStore
from eagle3.data.records import Response, read_json
from eagle3.decode.attention import soft_capped

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
    inside_V = torch.zeros(store.vocab_size, dtype=torch.bool)
    inside_V[kept_D] = True
    mass, rows = 0.0, 0
    for ref in store.samples("heldout"):
        sample = store.load(ref)
        if sample.top is None and head_DH is None:
            head_VH = _head(target)
            if head_VH is None:
                return None
            head_DH = head_VH[kept_D].float()
        found_R = mass_inside(sample, inside_V, head_DH, text.get("final_logit_softcapping"))
        mass, rows = mass + float(found_R.sum()), rows + len(found_R)
        if rows >= MOST_ROWS:
            break
    return mass / rows if rows else None


@torch.inference_mode()
def mass_inside(
    sample: Sample, inside_V: Tensor, head_DH: Tensor | None, softcap: float | None
) -> Tensor:
    """The target's probability mass inside the draft vocabulary on each row whose logits are known,
    [R].

    Args:
        inside_V: the draft vocabulary, bool.
        head_DH: its rows of the target's LM head; not needed where the sample has kept
            probabilities. These give a lower bound: what was not kept may lie inside, too.
    """
    at = (sample.argmax >= 0).nonzero()[:, 0]
    if sample.top is not None:
        return sample.top[at].mass_inside(inside_V.cpu())
    assert head_DH is not None
    logits_RD = soft_capped(sample.hidden[at].to(head_DH) @ head_DH.T, softcap)
    return (logits_RD.logsumexp(-1) - sample.lse[at].to(logits_RD)).exp().clamp(max=1)


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
