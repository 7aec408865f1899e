"""Where training starts: from what the target already knows.

V target vocabulary, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.draft import Draft

HEAD_SCALE = 0.3
"""Weight of the norm before the target's head: a nearly flat guess, not a surely wrong one."""


@torch.no_grad()
def start_from_target(draft: Draft, head_VH: Tensor) -> None:
    """`lm_head` is the target's own, turned down, and `fc` the mean of the three features.

    The head's rows already tell tokens apart, also those that the training data never shows. At
    equal tokens this accepted more than a random head (docs/experiments.md).
    """
    draft.lm_head.weight.copy_(head_VH[vocab.kept_ids(draft.d2t)])
    draft.norm.weight.fill_(HEAD_SCALE)
    draft.fc.weight.copy_(torch.eye(draft.config.hidden_size).repeat(1, 3) / 3)
