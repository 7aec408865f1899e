"""Soft cross-entropy against the target's distribution over the draft vocabulary.

Shapes: R rows, P positions with a label, H hidden size, Vd draft vocabulary (D in suffixes).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512
"""Rows whose logits exist at one time; bounds memory at CHUNK x Vd."""


class _FusedSoftCrossEntropy(torch.autograd.Function):
    """`weight * sum(CE(label, softmax(x W^T)))` with both gradients made in the forward pass.

    No row's logits outlive its chunk, so memory does not grow with R x Vd x S.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_RH: Tensor,
        head_DH: Tensor,
        label_PD: Tensor,
        index_R: Tensor,
        weight: float,
    ) -> tuple[Tensor, Tensor]:
        grad_x = torch.empty_like(x_RH)
        grad_head = torch.zeros_like(head_DH)
        loss = x_RH.new_zeros(())
        choice = torch.empty(len(x_RH), dtype=torch.int64, device=x_RH.device)
        for i in range(0, len(x_RH), CHUNK):
            part = slice(i, i + CHUNK)
            x, label = x_RH[part], label_PD[index_R[part]]
            logits = x @ head_DH.T
            choice[part] = logits.argmax(-1)
            log_z = logits.logsumexp(-1, keepdim=True)
            loss += weight * (log_z.sum() - (label * logits).sum())
            grad = logits.sub_(log_z).exp_().sub_(label).mul_(weight)
            grad_x[part] = grad @ head_DH
            grad_head.addmm_(grad.T, x)
        ctx.save_for_backward(grad_x, grad_head)
        ctx.mark_non_differentiable(choice)
        return loss, choice

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_x, grad_head = ctx.saved_tensors
        return grads[0] * grad_x, grads[0] * grad_head, None, None, None


def soft_cross_entropy(
    x_RH: Tensor, head_DH: Tensor, label_PD: Tensor, index_R: Tensor, weight: float
) -> tuple[Tensor, Tensor]:
    """`weight` times the sum of the rows' cross-entropies, and the draft's top choice of each row.

    Args:
        x_RH: the draft's normed outputs.
        head_DH: the draft's LM head.
        label_PD: rows that sum to 1, the target's distribution renormalised over the draft
            vocabulary, once for each position.
        index_R: which position's label a row has.

    Returns:
        A scalar, and draft ids int64 [R].
    """
    loss, choice = _FusedSoftCrossEntropy.apply(x_RH, head_DH, label_PD, index_R, weight)
    return loss, choice


def target_distribution(hidden_RH: Tensor, head_DH: Tensor, softcap: float | None) -> Tensor:
    """The target's softmax restricted to the draft vocabulary and renormalised, [R, Vd].

    Args:
        hidden_RH: the target's final normed hidden states.
        head_DH: the rows of the target's LM head that the draft vocabulary keeps.
    """
    logits = hidden_RH @ head_DH.T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.softmax(-1)
