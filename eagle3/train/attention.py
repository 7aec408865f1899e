"""Attention of training-time test: one softmax over far keys and near keys.

A row sees the step-0 keys of rows 0..j of its own sequence (far) and its own keys of the steps so
far (near, "the diagonal"). Three implementations, one function; tests hold them to each other:

    Plain     the definition: every score in one masked matrix. Exact in float64; slow.
    Blocked   CPUs: PyTorch's fused kernel for the far keys, a block of rows at a time.
    Flex      GPUs: flex attention for the far keys, its mask over packed sequences.

The two fast ones make softmax over far keys and over near keys apart and join them by their
normalisers, so that a score matrix of rows x keys x steps never exists.

Shapes: T packed rows, R rows where drafting can start, Q query heads, N key/value heads, G = Q / N,
D head_dim, K near steps; r and L the rows and keys of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from eagle3.train.batch import Batch
from eagle3.train.precision import type_of_products

KeyValue = tuple[Tensor, Tensor]

BLOCK = 128
"""Rows of one call of the fused kernel; keys beyond the last of them are left out."""


class Attention(Protocol):
    def __call__(self, query_RQD: Tensor, far: KeyValue, near: Sequence[KeyValue]) -> Tensor:
        """Attend; returns [R, Q, D].

        Args:
            far: keys and values of step 0, [T, N, D] each.
            near: the rows' own keys and values of each later step, [R, N, D] each.
        """
        ...


class Plain:
    """The definition."""

    def __init__(self, batch: Batch, rows_R: Tensor, scaling: float) -> None:
        sequence_T = batch.sequence_T
        row_T = torch.arange(len(sequence_T), device=rows_R.device)
        same_RT = sequence_T[rows_R][:, None] == sequence_T
        self.sees_RT = same_RT & (row_T <= rows_R[:, None])
        self.scaling = scaling

    def __call__(self, query_RQD: Tensor, far: KeyValue, near: Sequence[KeyValue]) -> Tensor:
        groups = query_RQD.shape[1] // far[0].shape[1]
        (far_key, far_value), *own = [
            (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))
            for key, value in (far, *near)
        ]
        scores = torch.einsum("rqd,tqd->rqt", query_RQD, far_key) * self.scaling
        scores = scores.masked_fill(~self.sees_RT[:, None], float("-inf"))
        own_scores = [(query_RQD * key).sum(-1, keepdim=True) * self.scaling for key, _ in own]
        weights = torch.cat([scores, *own_scores], -1).softmax(-1)
        keys = len(far_key)
        out = torch.einsum("rqt,tqd->rqd", weights[..., :keys], far_value)
        for k, (_, value) in enumerate(own):
            out = out + weights[..., keys + k, None] * value
        return out


def join(
    query_RQD: Tensor, far_out: Tensor, far_lse: Tensor, near: Sequence[KeyValue], scaling: float
) -> Tensor:
    """Softmax over far and near keys from that over the far ones alone.

    Args:
        far_out: [R, Q, D].
        far_lse: log sum exp of the far scores, [R, Q].
    """
    if not near:
        return far_out
    key, value = (torch.stack(side) for side in zip(*near, strict=True))
    scores = own_scores(query_RQD, key, scaling)
    lse = torch.logaddexp(far_lse, scores.logsumexp(0))
    shares = (scores - lse).exp()
    far_share = (far_lse - lse).exp()
    return far_out * far_share[..., None] + spread(shares, value)


def own_scores(query_RQD: Tensor, key_KRND: Tensor, scaling: float) -> Tensor:
    """Scores of the rows' own keys, [K, R, Q]."""
    rows, queries, _ = query_RQD.shape
    grouped = query_RQD.view(rows, key_KRND.shape[2], -1, query_RQD.shape[-1])
    return (grouped * key_KRND.unsqueeze(3)).sum(-1).view(-1, rows, queries) * scaling


def spread(shares_KRQ: Tensor, value_KRND: Tensor) -> Tensor:
    """The rows' own values times their shares, summed over steps, [R, Q, D]."""
    steps, rows, heads, dim = value_KRND.shape
    shares = shares_KRQ.view(steps, rows, heads, -1, 1)
    return (shares * value_KRND.unsqueeze(3)).sum(0).view(rows, -1, dim)


@dataclass(frozen=True)
class _Block:
    """Some rows of one sequence, and the keys that the last of them sees."""

    rows: slice
    keys: slice
    last_r: Tensor
    """The last key that a row sees, counted from the first of `keys`."""


class Blocked:
    """PyTorch's fused CPU kernel; heads that share a key are rows of one product."""

    def __init__(self, batch: Batch, rows_R: Tensor, scaling: float) -> None:
        self.scaling = scaling
        edges = torch.tensor([*batch.starts, len(batch.ids_T)], device=rows_R.device)
        bounds = torch.searchsorted(rows_R, edges).tolist()
        self.blocks = []
        for i, start in enumerate(batch.starts):
            for first in range(bounds[i], bounds[i + 1], BLOCK):
                rows = slice(first, min(first + BLOCK, bounds[i + 1]))
                keys = slice(start, int(rows_R[rows.stop - 1]) + 1)
                self.blocks.append(_Block(rows, keys, rows_R[rows] - start))

    def __call__(self, query_RQD: Tensor, far: KeyValue, near: Sequence[KeyValue]) -> Tensor:
        dtype = type_of_products(query_RQD)
        flat = [x.to(dtype) for pair in (far, *near) for x in pair]
        out: Tensor = _Fused.apply(query_RQD.to(dtype), self, *flat)
        return out


class _Fused(torch.autograd.Function):
    """Far keys through the fused kernel, near keys by hand, joined.

    The kernel's backward pass wants the output and the normaliser of its own softmax; given those
    of the joined one, it makes the far keys' part of the joined gradient: a score's gradient is its
    share of the joined softmax times (grad . value - grad . output), whatever else there is.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, layout: Blocked, key: Tensor, value: Tensor, *near: Tensor
    ) -> Tensor:
        out = torch.empty_like(query)
        exact = torch.promote_types(query.dtype, torch.float32)
        lse = torch.empty(query.shape[:2], dtype=exact)
        for block in layout.blocks:
            far_out, far_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *_inputs(block, query, key, value), attn_mask=_mask(block, query, key),
                scale=layout.scaling,
            )  # fmt: skip
            out[block.rows] = _by_row(far_out, query)
            lse[block.rows] = _by_row(far_lse.unsqueeze(-1), query)[..., 0]
        if near:
            keys, values = torch.stack(near[0::2]), torch.stack(near[1::2])
            scores = own_scores(query.to(exact), keys.to(exact), layout.scaling)
            total = torch.logaddexp(lse, scores.logsumexp(0))
            far = out * (lse - total).exp()[..., None]
            out = (far + spread((scores - total).exp(), values.to(exact))).to(query.dtype)
            lse = total
        ctx.layout = layout
        ctx.save_for_backward(query, key, value, out, lse, *near)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse, *near = ctx.saved_tensors
        layout, grad = ctx.layout, grads[0].contiguous()
        d_query, exact = torch.zeros_like(query), lse.dtype
        d_key, d_value = torch.zeros_like(key, dtype=exact), torch.zeros_like(value, dtype=exact)
        for block in layout.blocks:
            q, k, v = _inputs(block, query, key, value)
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _grouped(block, grad, key), q, k, v, _grouped(block, out, key),
                _grouped(block, lse.unsqueeze(-1), key)[..., 0], 0.0, False,
                attn_mask=_mask(block, query, key), scale=layout.scaling,
            )  # fmt: skip
            d_query[block.rows] = _by_row(dq, query)
            d_key[block.keys] += dk[0].transpose(0, 1)
            d_value[block.keys] += dv[0].transpose(0, 1)
        d_near: list[Tensor] = []
        if near:
            d_own, d_near = _near_gradients(grad, query, out, lse, near, layout.scaling)
            d_query = (d_query + d_own).to(query.dtype)
        return d_query, None, d_key.to(key.dtype), d_value.to(value.dtype), *d_near


def _near_gradients(
    grad: Tensor, query: Tensor, out: Tensor, lse: Tensor, near: list[Tensor], scaling: float
) -> tuple[Tensor, list[Tensor]]:
    """Gradients in the query, and in each near key and value."""
    exact, dtype = lse.dtype, query.dtype
    keys, values = torch.stack(near[0::2]).to(exact), torch.stack(near[1::2]).to(exact)
    grad, query = grad.to(exact), query.to(exact)
    share = (own_scores(query, keys, scaling) - lse).exp()
    d_score = share * (own_scores(grad, values, 1.0) - (grad * out).sum(-1)) * scaling
    d_keys, d_values = _gather(d_score, query, keys), _gather(share, grad, values)
    flat = [x.to(dtype) for pair in zip(d_keys, d_values, strict=True) for x in pair]
    return spread(d_score, keys), flat


def _gather(shares_KRQ: Tensor, x_RQD: Tensor, like_KRND: Tensor) -> Tensor:
    """Sum over the heads that share a key of share times x, [K, R, N, D]."""
    steps, rows, heads, dim = like_KRND.shape
    shares = shares_KRQ.view(steps, rows, heads, -1, 1)
    return (shares * x_RQD.view(rows, heads, -1, dim)).sum(3)


def _inputs(
    block: _Block, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel's query [1, N, r G, D], key and value [1, N, L, D]."""
    far_key = key[block.keys].transpose(0, 1)[None]
    return _grouped(block, query, key), far_key, value[block.keys].transpose(0, 1)[None]


def _grouped(block: _Block, x_RQD: Tensor, key: Tensor) -> Tensor:
    """A block's rows of [R, Q, D] as [1, N, r G, D]."""
    x = x_RQD[block.rows]
    rows, _, dim = x.shape
    return x.view(rows, key.shape[1], -1, dim).transpose(0, 1).reshape(1, key.shape[1], -1, dim)


def _by_row(x_1NrD: Tensor, query: Tensor) -> Tensor:
    """The inverse: [1, N, r G, D] as [r, Q, D]."""
    _, heads, _, dim = x_1NrD.shape
    groups = query.shape[1] // heads
    return x_1NrD.view(heads, -1, groups, dim).transpose(0, 1).reshape(-1, query.shape[1], dim)


def _mask(block: _Block, query: Tensor, key: Tensor) -> Tensor:
    """Additive, [r G, L]: -inf at keys that a row does not see."""
    groups = query.shape[1] // key.shape[1]
    hidden_rL = torch.arange(block.keys.stop - block.keys.start) > block.last_r[:, None]
    mask = torch.zeros(hidden_rL.shape, dtype=query.dtype)
    return mask.masked_fill_(hidden_rL, float("-inf")).repeat_interleave(groups, 0)
