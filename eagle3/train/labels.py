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
from eagle3.data.topk import TopK
from eagle3.decode.attention import soft_capped
from eagle3.draft import Draft
from eagle3.train.batch import Batch

NEVER = -1e4
"""Logit of a token that has no probability: exp of it is 0, and 0 times it is 0."""


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
        return soft_capped(self.hidden_PH[positions] @ self.head_DH[span].T, self.softcap)


@dataclass(frozen=True)
class TopKLabels:
    """Labels from the largest probabilities, where the feature store keeps these alone."""

    top: TopK
    t2d_V: Tensor
    draft_vocab_size: int

    def logits(self, positions: slice, span: slice) -> Tensor:
        top = self.top[positions]
        column_PK = (torch.cumsum(self.t2d_V, 0) - 1)[top.ids] - span.start
        width = min(span.stop, self.draft_vocab_size) - span.start
        here_PK = self.t2d_V[top.ids] & (column_PK >= 0) & (column_PK < width) & (top.probs > 0)
        # What is not kept, or lies outside, goes to a last column, which is dropped.
        logits = top.probs.new_full((len(top.probs), width + 1), NEVER)
        logits.scatter_(1, column_PK.where(here_PK, width), top.probs.log())
        return logits[:, :width]


@dataclass(frozen=True)
class Teacher:
    """What training needs of the target: the rows of its LM head inside the draft vocabulary."""

    head_DH: Tensor
    softcap: float | None = None
    t2d_V: Tensor | None = None
    """The draft vocabulary; needed where labels come from kept probabilities."""

    @classmethod
    def of(cls, head_VH: Tensor, draft: Draft, softcap: float | None) -> Teacher:
        head_DH = head_VH[vocab.kept_ids(draft.d2t)].to(draft.fc.weight.dtype)
        return cls(head_DH, softcap, draft.t2d)

    def labels(self, batch: Batch, positions_P: Tensor) -> Labels:
        """The labels that the target gives at these rows of a batch."""
        if batch.top_T is not None:
            assert self.t2d_V is not None
            return TopKLabels(batch.top_T[positions_P], self.t2d_V, len(self.head_DH))
        return HeadLabels(batch.hidden_TH[positions_P], self.head_DH, self.softcap)
