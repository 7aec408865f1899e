"""Where training starts: from what the target already knows.

V target vocabulary, H hidden size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.draft import Draft

Head = Literal["random", "target", "target_rescaled"]

HEAD_SCALE = 0.3
"""Weight of the norm before the target's head: a nearly flat guess, not a surely wrong one."""

RANDOM_STD = 0.02
"""Spread of a random head's weights."""


@torch.no_grad()
def start_from_target(draft: Draft, head_VH: Tensor, head: Head = "target_rescaled") -> None:
    """Set `lm_head` as asked for, and `fc` to the mean of the three features.

    The target's rows already tell tokens apart, also those that the training data never shows. At
    equal tokens the target's head, turned down, accepted more than a random one
    (docs/experiments.md).

    Args:
        head: random rows; the target's own rows; or these with `norm` turned down to `HEAD_SCALE`.
    """
    if head == "random":
        draft.lm_head.weight.normal_(std=RANDOM_STD)
    else:
        draft.lm_head.weight.copy_(head_VH[vocab.kept_ids(draft.d2t)])
    draft.norm.weight.fill_(HEAD_SCALE if head == "target_rescaled" else 1.0)
    draft.fc.weight.copy_(torch.eye(draft.config.hidden_size).repeat(1, 3) / 3)
