"""Attention of few rows against many keys, without repeating the keys of grouped heads.

Shapes: B sequences, H query heads, N key/value heads, G = H / N, Q rows, K keys, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "updraft"

FEW = 32
"""Up to this many rows it pays to stack heads; beyond, the stacked mask would grow large."""


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """`cap * tanh(x / cap)` (Gemma 2), or x itself where there is no cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def grouped_attention(
    q_BHQD: Tensor,
    k_BNKD: Tensor,
    v_BNKD: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Softmax attention; returns [B, H, Q, D].

    Args:
        mask: additive, broadcastable to [B, 1, Q, K]; None when every row sees every key.
        softcap: scores become `softcap * tanh(scores / softcap)` (Gemma 2).
        sinks_H: a further score of each head that takes its share of the softmax and has no
            value (gpt-oss).
    """
    batch, heads, rows, dim = q_BHQD.shape
    kv_heads = k_BNKD.shape[1]
    group = heads // kv_heads
    if softcap is not None or sinks_H is not None:
        return _explicit(q_BHQD, k_BNKD, v_BNKD, mask, scaling, softcap, sinks_H)
    if rows == 1 or rows > FEW:
        return F.scaled_dot_product_attention(
            q_BHQD, k_BNKD, v_BNKD, attn_mask=mask, scale=scaling, enable_gqa=group > 1
        )
    # The rows of the heads that share a key head are stacked: one product a key head.
    q = q_BHQD.reshape(batch, kv_heads, group * rows, dim)
    stacked = None if mask is None else mask.repeat(1, 1, group, 1)
    out = F.scaled_dot_product_attention(q, k_BNKD, v_BNKD, attn_mask=stacked, scale=scaling)
    return out.view(batch, heads, rows, -1)


def _explicit(
    q_BHQD: Tensor,
    k_BNKD: Tensor,
    v_BNKD: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """What torch's fused attention cannot do, written out; the softmax is in float32."""
    batch, heads, rows, dim = q_BHQD.shape
    kv_heads = k_BNKD.shape[1]
    group = heads // kv_heads
    q = q_BHQD.reshape(batch, kv_heads, group * rows, dim)
    scores = (q @ k_BNKD.transpose(-1, -2) * scaling).view(batch, kv_heads, group, rows, -1)
    scores = soft_capped(scores, softcap)
    if mask is not None:
        scores = scores + mask[:, :, None]
    if sinks_H is not None:
        sinks = sinks_H.to(scores.dtype).view(1, kv_heads, group, 1, 1)
        scores = torch.cat([scores, sinks.expand(batch, -1, -1, rows, -1)], -1)
    p = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    if sinks_H is not None:
        p = p[..., :-1]
    out = p.to(v_BNKD.dtype).reshape(batch, kv_heads, group * rows, -1) @ v_BNKD
    return out.view(batch, heads, rows, -1)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The signature that transformers calls; returns [B, Q, H, D].

    A sliding window is in the mask already (`Target.forward`).
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = grouped_attention(query, key, value, attention_mask, scale, softcap, s_aux)
    return out.transpose(1, 2).contiguous(), None  # some models reshape it with `view`


AttentionInterface.register(NAME, _forward)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask (True: may see) as one that is added to scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(
        ~mask, torch.finfo(dtype).min
    )


def visible(own: Tensor, past: Sequence[int]) -> Tensor:
    """What new rows see: all that stands in their line, and of the new rows what `own` says.

    Args:
        own: boolean [Q, J] or [B, Q, J]; the last Q of J rows are looked from.
        past: rows that stand in each line, before these J.

    Returns:
        Boolean [B or 1, 1, Q, K], K = the longest past + J.
    """
    if all(rows == past[0] for rows in past):
        seen = own.new_ones(*own.shape[:-1], past[0])
        mask = torch.cat([seen, own], -1)
        return mask[None, None] if own.dim() == 2 else mask[:, None]
    rows = own.shape[-1]
    keys_K = torch.arange(max(past) + rows, device=own.device)
    after_BK = keys_K - torch.tensor(past, device=own.device)[:, None]
    own_BQJ = own.expand(len(past), -1, -1)
    at_BQK = after_BK.clamp(0, rows - 1)[:, None].expand(-1, own.shape[-2], -1)
    new_BQK = own_BQJ.gather(2, at_BQK) & (after_BK < rows)[:, None]
    return torch.where(after_BK[:, None] < 0, True, new_BQK)[:, None]


def causal_mask(
    rows: int, past: Sequence[int] = (0,), device: torch.device | None = None
) -> Tensor | None:
    """Row i sees its line's past and new rows 0..i; None where every row sees every key."""
    if rows == 1 and all(stands == past[0] for stands in past):
        return None
    return visible(torch.ones(rows, rows, dtype=torch.bool, device=device).tril(), past)
