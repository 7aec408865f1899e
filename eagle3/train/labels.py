"""What the draft is taught: the target's distribution over the draft vocabulary, as logits.

Made a few positions and a span of the vocabulary at a time, so that it never exists whole.

Shapes: P positions with a label, H hidden size, V target vocabulary, Vd draft vocabulary (D in
suffixes), C a span of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.draft import Draft
from eagle3.train.batch import Batch


class Labels(Protocol):
    """One label a position."""

    def logits(self, positions: slice, span: slice) -> Tensor:
        """A new tensor [P, C]: the softmax over all spans is the label."""
        ...


@dataclass(frozen=True)
class HeadLabels:
    """Labels from the target's final hidden states."""

    hidden_PH: Tensor
    """After the target's final norm."""
    head_DH: Tensor
    softcap: float | None

    def logits(self, positions: slice, span: slice) -> Tensor:
        logits = self.hidden_PH[positions] @ self.head_DH[span].T
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits


@dataclass(frozen=True)
class Teacher:
    """What training needs of the target: the rows of its LM head inside the draft vocabulary."""

    head_DH: Tensor
    softcap: float | None = None

    @classmethod
    def of(cls, head_VH: Tensor, draft: Draft, softcap: float | None) -> Teacher:
        return cls(head_VH[vocab.kept_ids(draft.d2t)].to(draft.fc.weight.dtype), softcap)

    def labels(self, batch: Batch, positions_P: Tensor) -> Labels:
        """The labels that the target gives at these rows of a batch."""
        return HeadLabels(batch.hidden_TH[positions_P], self.head_DH, self.softcap)
