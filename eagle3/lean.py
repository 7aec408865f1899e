"""Norm and activation that keep less for the backward pass than their plain form.

Autograd keeps what every small operation took in. Training-time test goes through the decoder layer
S times, so that is the largest part of its memory; what is kept here is the inputs, and the rest is
made again, which costs no product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32 or more (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Norm.apply(x, self.weight, self.eps)
        return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return weight * (exact * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed, grad = x.to(scale.dtype) * scale, grads[0].to(scale.dtype)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        d_x = None
        if ctx.needs_input_grad[0]:
            grad = grad * weight
            along = (grad * normed).mean(-1, keepdim=True)
            d_x = grad.sub_(normed.mul_(along)).mul_(scale).to(x.dtype)
        return d_x, d_weight, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    out: Tensor = _SwiGLU.apply(gate, up)
    return out


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        gate, up = ctx.saved_tensors
        d_gate = torch.ops.aten.silu_backward(grads[0] * up, gate)
        return d_gate, F.silu(gate).mul_(grads[0])
