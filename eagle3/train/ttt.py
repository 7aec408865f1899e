"""Training-time test: S draft steps unrolled over every row at once (EAGLE-3, section 3.2).

Row j of step k takes the token x[j+1+k] and, as its feature, fc(F[j]) at k = 0 and its own output
of step k-1 after that. It attends, in one softmax, to the step-0 keys of rows 0..j of its sequence
and to its own keys of steps 1..k, at rotary position j + k. This equals a literal chain of S draft
steps started at every row; a test holds that to 1e-10.

Shapes: T packed rows, R rows where drafting can start, S steps, Q query heads, N key/value heads,
G = Q / N, D head_dim, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from eagle3.draft import Draft
from eagle3.train.batch import Batch

NextTokens = Callable[[int, Tensor], Tensor]
"""Given the step k and the outputs [R, H] of step k-1: the tokens [R] that step k takes in."""


def unroll(
    draft: Draft, batch: Batch, rows_R: Tensor, steps: int, next_tokens: NextTokens | None = None
) -> Iterator[Tensor]:
    """Yield the draft's output [R, H] (before `norm`) at each step.

    Keys and values of step 0 are made for all T rows; everything else for `rows_R` alone.

    Args:
        rows_R: indices of the rows to draft from, ascending.
        next_tokens: what a step takes in after the first; the data's own tokens when empty
            (teacher forcing). Drafting passes the draft's own choices.
    """
    last = len(batch.ids_T) - 1
    device = batch.ids_T.device
    token_after = lambda k: batch.ids_T[(rows_R + 1 + k).clamp(max=last)]  # noqa: E731
    position_R = batch.positions_T[rows_R]

    fused_TH = draft.fuse(batch.features_T3H)
    shifted_T = batch.ids_T[torch.arange(1, last + 2, device=device).clamp(max=last)]
    mixed_T = draft.midlayer.mix(draft.embed(shifted_T), fused_TH)
    key0_TND, value0_TND = draft.key_value(mixed_T, batch.positions_T)
    near: list[tuple[Tensor, Tensor]] = []

    query_RQD = draft.query(mixed_T[rows_R], position_R)
    feature_RH = fused_TH[rows_R]
    for k in range(steps):
        if k > 0:
            ids = token_after(k) if next_tokens is None else next_tokens(k, feature_RH)
            mixed_R = draft.midlayer.mix(draft.embed(ids), feature_RH)
            query_RQD = draft.query(mixed_R, position_R + k)
            near.append(draft.key_value(mixed_R, position_R + k))
        attended = _attend(query_RQD, key0_TND, value0_TND, near, batch, rows_R, draft.scaling)
        feature_RH = draft.midlayer.finish(feature_RH, attended)
        yield feature_RH


def _attend(
    query_RQD: Tensor,
    key0_TND: Tensor,
    value0_TND: Tensor,
    near: list[tuple[Tensor, Tensor]],
    batch: Batch,
    rows_R: Tensor,
    scaling: float,
) -> Tensor:
    """One softmax over far keys (step 0, rows 0..j of the same sequence) and near keys (own row).

    Goes sequence by sequence, so that its memory is the sum of rows x length, never (sum) squared.
    Returns [R, Q, D].
    """
    n, d = key0_TND.shape[1:]
    r_total = len(rows_R)
    query_RNGD = (query_RQD * scaling).view(r_total, n, -1, d)
    near_scores = [(query_RNGD * k_RND.unsqueeze(2)).sum(-1) for k_RND, _ in near]
    outs: list[Tensor] = []
    edges = torch.tensor([*batch.starts, len(batch.ids_T)], device=rows_R.device)
    bounds = torch.searchsorted(rows_R, edges).tolist()
    for i, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
        mine = slice(bounds[i], bounds[i + 1])
        if bounds[i] == bounds[i + 1]:
            continue
        row_r = rows_R[mine] - start
        key_NLD = key0_TND[start : start + length].transpose(0, 1)
        value_NLD = value0_TND[start : start + length].transpose(0, 1)
        query_NrGD = query_RNGD[mine].transpose(0, 1)
        r, g = query_NrGD.shape[1:3]
        far = (query_NrGD.reshape(n, r * g, d) @ key_NLD.transpose(1, 2)).view(n, r, g, length)
        hidden = torch.arange(length, device=row_r.device) > row_r[:, None]
        far = far.masked_fill(hidden[None, :, None], float("-inf"))
        own = [s[mine].transpose(0, 1).unsqueeze(-1) for s in near_scores]
        weights = torch.cat([far, *own], dim=-1).softmax(-1)
        out_NrGD = (weights[..., :length].reshape(n, r * g, length) @ value_NLD).view(n, r, g, d)
        out_rNGD = out_NrGD.transpose(0, 1)
        for k, (_, v_RND) in enumerate(near):
            share_rNG = weights[..., length + k].transpose(0, 1)
            out_rNGD = out_rNGD + share_rNG.unsqueeze(-1) * v_RND[mine].unsqueeze(2)
        outs.append(out_rNGD.reshape(r, n * g, d))
    return torch.cat(outs)
