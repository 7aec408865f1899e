"""The loss of one batch: sum over steps k of decay^k times the mean over supervised rows.

A row counts at step k when drafting can stand there (`Batch.supervised_ST`) and the target's own
choice lies in the draft vocabulary; what that leaves out is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.draft import Draft
from eagle3.train.batch import Batch
from eagle3.train.loss import soft_cross_entropy, target_distribution
from eagle3.train.ttt import unroll


@dataclass(frozen=True)
class Teacher:
    """What training needs of the target: the rows of its LM head inside the draft vocabulary."""

    head_DH: Tensor
    softcap: float | None = None

    @classmethod
    def of(cls, head_VH: Tensor, draft: Draft, softcap: float | None) -> Teacher:
        return cls(head_VH[vocab.kept_ids(draft.d2t)].to(draft.fc.weight.dtype), softcap)


@dataclass(frozen=True)
class Objective:
    """The loss, and for each step what the draft got right."""

    loss: Tensor
    step_loss: list[float]
    hits: list[int]
    """Rows where the draft's top choice is the target's."""
    rows: list[int]
    """Supervised rows of each step."""
    outside: list[int]
    """Rows left out because the target's choice lies outside the draft vocabulary."""


def objective(draft: Draft, teacher: Teacher, batch: Batch, decay: float) -> Objective:
    """Unroll the draft over a batch and score every step."""
    steps = len(batch.supervised_ST)
    rows_R = batch.supervised_ST[0].nonzero()[:, 0]
    assert len(rows_R), "a batch of samples none of which teaches"
    last = len(batch.ids_T) - 1
    draft_id_V = torch.cumsum(draft.t2d, 0) - 1
    label_at = torch.zeros(last + 1, dtype=torch.bool, device=batch.ids_T.device)
    kept: list[Tensor] = []
    outside: list[int] = []
    for k in range(steps):
        position_R = (rows_R + 1 + k).clamp(max=last)
        stands_R = batch.supervised_ST[k][rows_R]
        inside_R = stands_R & draft.t2d[batch.argmax_T[position_R].clamp(min=0)]
        kept.append(inside_R.nonzero()[:, 0])
        outside.append(int(stands_R.sum() - inside_R.sum()))
        label_at[position_R[inside_R]] = True
    with torch.no_grad():
        label_PD = target_distribution(batch.hidden_TH[label_at], teacher.head_DH, teacher.softcap)
    label_index_T = torch.cumsum(label_at, 0) - 1

    total = label_PD.new_zeros(())
    result = Objective(total, [], [], [], outside)
    for k, out_RH in enumerate(unroll(draft, batch, rows_R, steps)):
        rows_k = kept[k]
        position_k = rows_R[rows_k] + 1 + k
        x = draft.norm(out_RH[rows_k])
        weight = 1.0 / max(1, len(rows_k))
        loss, choice = soft_cross_entropy(
            x, draft.lm_head.weight, label_PD, label_index_T[position_k], weight
        )
        total = total + decay**k * loss
        result.step_loss.append(float(loss.detach()))
        result.hits.append(int((choice == draft_id_V[batch.argmax_T[position_k]]).sum()))
        result.rows.append(len(rows_k))
    return Objective(total, result.step_loss, result.hits, result.rows, outside)
