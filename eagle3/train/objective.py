"""The loss of one optimiser step: sum over draft steps k of decay^k times the mean over rows.

A row counts at step k when drafting can stand there (`Batch.supervised_ST`) and the target's own
choice lies in the draft vocabulary; what that leaves out is counted.

Shapes: T rows of a batch, R rows where drafting can start, S draft steps, N rows that count, over
all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from eagle3.draft import Draft, Vocabulary
from eagle3.train.batch import Batch
from eagle3.train.labels import Teacher
from eagle3.train.loss import Loss, Rows, weighted_loss
from eagle3.train.ttt import unroll

Per = Literal["token", "sequence"]


@dataclass(frozen=True)
class Supervised:
    """Which rows of a batch count at which step, in ascending order of the label's position."""

    rows_R: Tensor
    row_N: Tensor
    """Index into `rows_R`."""
    step_N: Tensor
    position_N: Tensor
    """The row whose logits are the label."""
    sequence_N: Tensor
    """Which of the batch's sequences it belongs to."""
    outside: list[int]
    """For each step, the rows left out because the target's choice is not in the vocabulary."""

    @classmethod
    def of(cls, draft: Vocabulary, batch: Batch) -> Supervised:
        steps, total = batch.supervised_ST.shape
        rows_R = batch.supervised_ST[0].nonzero()[:, 0]
        assert len(rows_R), "a batch of samples none of which teaches"
        ahead_S = torch.arange(1, steps + 1, device=rows_R.device)
        position_SR = (rows_R + ahead_S[:, None]).clamp(max=total - 1)
        stands_SR = batch.supervised_ST[:, rows_R]
        inside_SR = stands_SR & draft.t2d[batch.argmax_T[position_SR].clamp(min=0)]
        step_N, row_N = inside_SR.nonzero(as_tuple=True)
        position_N = position_SR[step_N, row_N]
        order = torch.argsort(position_N, stable=True)
        return cls(
            rows_R,
            row_N[order],
            step_N[order],
            position_N[order],
            batch.sequence_T[position_N[order]],
            (stands_SR.sum(1) - inside_SR.sum(1)).tolist(),
        )


def alone(values: Tensor) -> Tensor:
    """The sum over processes where there is one."""
    return values


def weights(
    parts: Sequence[Supervised],
    steps: int,
    decay: float,
    per: Per,
    add: Callable[[Tensor], Tensor] = alone,
) -> list[Tensor]:
    """What each row of each part counts in the loss of the parts together, [N] each.

    Args:
        per: `token`: step k's loss is the mean over its rows. `sequence`: the mean over sequences
            of each one's mean, so that a long answer does not outweigh a short one.
        add: sums over the processes that have the other parts.
    """
    keys = [part.sequence_N * steps + part.step_N for part in parts]
    counts = [torch.bincount(key) for key in keys]  # rows of a sequence at a step
    out = []
    if per == "token":
        counted = [part.step_N for part in parts]
    else:
        counted = [count.nonzero()[:, 0] % steps for count in counts]
    total = torch.zeros(steps, dtype=torch.int64)
    for step in counted:
        total = total.to(step.device) + torch.bincount(step, minlength=steps)
    total = add(total)
    for part, key, count in zip(parts, keys, counts, strict=True):
        share_N = decay ** part.step_N.double() / total[part.step_N]
        out.append(share_N / count[key] if per == "sequence" else share_N)
    return out


@dataclass(frozen=True)
class Objective:
    """The loss, and for each step what the draft got right."""

    loss: Tensor
    step_loss: list[float]
    """Sum of the rows' losses."""
    hits: list[int]
    """Rows where the draft's top choice is the target's."""
    rows: list[int]
    """Rows that count at each step."""
    outside: list[int]

    @classmethod
    def total(
        cls, parts: Sequence[Objective], steps: int, add: Callable[[Tensor], Tensor] = alone
    ) -> Objective:
        """Of the parts of one optimiser step; `add` sums over the processes that have the others.

        The loss is on the CPU, float64; 2^53 rows are counted exactly.
        """
        sums = torch.zeros(5, steps, dtype=torch.float64)
        for part in parts:
            sums[0, 0] += float(part.loss.detach())
            sums[1:] += torch.tensor(
                [part.step_loss, part.hits, part.rows, part.outside], dtype=torch.float64
            )
        loss, step_loss, hits, rows, outside = add(sums)
        counts = (values.long().tolist() for values in (hits, rows, outside))
        return cls(loss[0], step_loss.tolist(), *counts)

    def detach(self) -> Objective:
        return replace(self, loss=self.loss.detach())

    def metrics(self) -> dict[str, float]:
        """The loss, and the share of rows that each step got right."""
        hits = {
            f"train/acc_step_{k}": h / max(1, n)
            for k, (h, n) in enumerate(zip(self.hits, self.rows, strict=True))
        }
        return {"train/loss": float(self.loss), **hits}


def score(
    draft: Draft,
    teacher: Teacher,
    batch: Batch,
    part: Supervised,
    weight_N: Tensor,
    kind: Loss = "soft_ce",
    recompute: bool = False,
) -> Objective:
    """Unroll the draft over a batch and score every step; only rows that count meet the LM head."""
    steps = len(batch.supervised_ST)
    flat_N = part.step_N * len(part.rows_R) + part.row_N
    outs = unroll(draft, batch, part.rows_R, steps, recompute=recompute)
    x_NH = draft.norm(torch.cat(list(outs)).index_select(0, flat_N))
    positions_P, index_N = torch.unique_consecutive(part.position_N, return_inverse=True)
    rows = Rows(teacher.labels(batch, positions_P), index_N, part.step_N, weight_N.to(x_NH))
    loss, value_N, choice_N = weighted_loss(x_NH, draft.lm_head.weight, rows, kind)

    def by_step(values_N: Tensor) -> Tensor:
        return torch.bincount(part.step_N, weights=values_N, minlength=steps)

    draft_id_V = torch.cumsum(draft.t2d, 0) - 1
    hit_N = choice_N == draft_id_V[batch.argmax_T[part.position_N]]
    return Objective(
        loss,
        by_step(value_N.double()).tolist(),
        by_step(hit_N.double()).long().tolist(),
        torch.bincount(part.step_N, minlength=steps).tolist(),
        part.outside,
    )


def objective(
    draft: Draft,
    teacher: Teacher,
    batch: Batch,
    decay: float,
    kind: Loss = "soft_ce",
    per: Per = "token",
    recompute: bool = False,
) -> Objective:
    """The loss of an optimiser step of one batch."""
    part = Supervised.of(draft, batch)
    weight_N = weights([part], len(batch.supervised_ST), decay, per)[0]
    return score(draft, teacher, batch, part, weight_N, kind, recompute)
