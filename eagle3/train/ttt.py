"""Training-time test: S draft steps unrolled over every row at once (EAGLE-3, section 3.2).

Row j of step k takes the token x[j+1+k] and, as its feature, fc(F[j]) at k = 0 and its own output
of step k-1 after that. It attends, in one softmax, to the step-0 keys of rows 0..j of its sequence
and to its own keys of steps 1..k, at rotary position j + k. This equals a literal chain of S draft
steps started at every row; a test holds that to 1e-10.

Shapes: T packed rows, R rows where drafting can start, S steps, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eagle3.draft import Draft, LayerDraft
from eagle3.train.attention import Attention, Blocked, KeyValue
from eagle3.train.batch import Batch
from eagle3.train.flex import Flex

NextTokens = Callable[[int, Tensor], Tensor]
"""Given the step k and the outputs [R, H] of step k-1: the tokens [R] that step k takes in."""


def attention_for(batch: Batch, rows_R: Tensor, scaling: float) -> Attention:
    """The fast implementation for where the batch lies."""
    return (Blocked if rows_R.device.type == "cpu" else Flex)(batch, rows_R, scaling)


def unroll(
    draft: LayerDraft,
    batch: Batch,
    rows_R: Tensor,
    steps: int,
    next_tokens: NextTokens | None = None,
    attention: Callable[[Batch, Tensor, float], Attention] = attention_for,
    recompute: bool = False,
    features_TH: Tensor | None = None,
    through: bool = True,
) -> Iterator[Tensor]:
    """Yield the draft's output [R, H] (before `norm`) at each step.

    Keys and values of step 0 are made for all T rows; everything else for `rows_R` alone.

    Args:
        rows_R: indices of the rows to draft from, ascending.
        next_tokens: what a step takes in after the first; the data's own tokens when empty
            (teacher forcing). Drafting passes the draft's own choices.
        attention: which implementation; the fast one for the batch's device when empty.
        recompute: keep no more of a step than its inputs, and make it again for its gradient.
        features_TH: what the rows of step 0 read; the fused features of the batch when empty.
        through: let gradients flow from a step into the one before it.
    """
    last = len(batch.ids_T) - 1
    device = batch.ids_T.device
    position_R = batch.positions_T[rows_R]
    if features_TH is None:
        assert isinstance(draft, Draft)
        features_TH = draft.fuse(batch.features_T3H)
    shifted_T = batch.ids_T[torch.arange(1, last + 2, device=device).clamp(max=last)]
    mixed_T, residual_TH = draft.mix(shifted_T, features_TH)
    far = draft.key_value(mixed_T, batch.positions_T)
    attend = attention(batch, rows_R, draft.scaling)

    def first(residual_RH: Tensor) -> Tensor:
        query_RQD = draft.query(mixed_T[rows_R], position_R)
        return draft.midlayer.finish(residual_RH, attend(query_RQD, far, []))

    def later(
        k: int, ids: Tensor, feature_RH: Tensor, near: list[KeyValue]
    ) -> tuple[Tensor, KeyValue]:
        mixed_R, residual_RH = draft.mix(ids, feature_RH)
        own = draft.key_value(mixed_R, position_R + k)
        query_RQD = draft.query(mixed_R, position_R + k)
        attended = attend(query_RQD, far, [*near, own])
        return draft.midlayer.finish(residual_RH, attended), own

    run = _recomputed if recompute else _kept
    near: list[KeyValue] = []
    feature_RH = run(first, residual_TH[rows_R])
    yield feature_RH
    for k in range(1, steps):
        data = batch.ids_T[(rows_R + 1 + k).clamp(max=last)]
        ids = data if next_tokens is None else next_tokens(k, feature_RH)
        before_RH = feature_RH if through else feature_RH.detach()
        feature_RH, own = run(later, k, ids, before_RH, near)
        near = [*near, own]  # a new list: a step that is made again must not see later ones
        yield feature_RH


def _kept(step: Callable[..., Any], *args: Any) -> Any:
    return step(*args)


def _recomputed(step: Callable[..., Any], *args: Any) -> Any:
    """Nothing of the step but its inputs is kept; it is made again in the backward pass."""
    return checkpoint(step, *args, use_reentrant=False, preserve_rng_state=False)
