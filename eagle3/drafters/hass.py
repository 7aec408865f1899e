"""HASS (Zhang et al. 2024, arXiv 2408.15766): EAGLE's draft, trained in the context it will have.

Context: the draft is unrolled over several steps, and a later step reads the features that the
draft itself made in the steps before it, as in decoding; no gradient flows from a step into an
earlier one, as in the public code. Objective: beside EAGLE's losses, the cross-entropy over the K
tokens that the target finds likeliest. Decoding is EAGLE-2's.

Shapes: P positions with a label, H hidden size, Vd draft vocabulary (D in suffixes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.drafters.eagle import TOKEN_SHARE, Eagle
from eagle3.train.labels import HeadLabels, Labels

TOP = 10
"""K (the paper's)."""
TOP_SHARE = 1.0
"""Weight of the cross-entropy over the K tokens (the paper's)."""


class Hass(Eagle):
    name = "hass"
    steps = 3

    def labels(self, hidden_PH: Tensor) -> tuple[Labels, Tensor]:
        """Both cross-entropies are one: with p of the target, its labels are
        p (TOKEN_SHARE + TOP_SHARE [top K]), normalised, and it counts as much as these add up to.
        """
        whole = HeadLabels(hidden_PH, self.lm_head.weight, self.softcap)
        with torch.autocast(hidden_PH.device.type, enabled=False):
            y_PD = whole.logits(slice(0, len(hidden_PH)), slice(0, len(self.d2t)))
        top = y_PD.topk(min(TOP, y_PD.shape[1]), dim=-1)
        mass_P = (top.values - y_PD.logsumexp(-1, keepdim=True)).exp().sum(-1)
        y_PD.scatter_(1, top.indices, top.values + math.log(1 + TOP_SHARE / TOKEN_SHARE))
        return Given(y_PD), TOKEN_SHARE + TOP_SHARE * mass_P


@dataclass(frozen=True)
class Given:
    """Labels whose logits are there."""

    logits_PD: Tensor

    def logits(self, positions: slice, span: slice) -> Tensor:
        return self.logits_PD[positions, span].clone()
