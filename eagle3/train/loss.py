"""Losses between the target's distribution p and the draft's q, both over the draft vocabulary.

    soft_ce     cross-entropy -sum p log q, whose gradient is KL(p || q)'s    (EAGLE-3)
    tv          total variation 1 - a, a = sum min(p, q): the share of drafted tokens that sampling
                rejects    (Leviathan et al. 2023, arXiv 2211.17192, corollary 3.6)
    lk_alpha    -log a    (LK losses, arXiv 2602.23881)
    lk_lambda   lambda KL(p || q) + (1 - lambda) (1 - a), lambda = exp(-3 mean a), the mean over the
                rows of a draft step in one forward, without gradient    (the same)

Logits exist for `ROWS` rows and `ELEMENTS / ROWS` columns at a time, whatever the size of the
vocabulary; gradients are made with them, in the forward pass. A vocabulary of more columns than
that has its logits made again for each pass over them: one for the normalisers, one for the sums
of each row, one for the gradient. `lk_lambda` needs every row's `a` first, which costs a pass more.

Shapes: R rows, P positions with a label, H hidden size, Vd draft vocabulary (D in suffixes), C a
span of it, r and p those of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eagle3.train.labels import Labels
from eagle3.train.precision import type_of_products

Loss = Literal["soft_ce", "tv", "lk_alpha", "lk_lambda"]

ROWS = 512
ELEMENTS = 2**24
"""Logits that exist at one time: 64 MB in float32."""
ETA = 3.0
"""How fast `lk_lambda` turns from KL to total variation (the value its authors use)."""
TINY = 1e-12
"""The least acceptance that -log a is taken of."""


@dataclass(frozen=True)
class Rows:
    """The rows of a loss, in ascending order of their positions.

    Args:
        index_R: which position's label a row has; ascending, every position in it.
        group_R: the draft step of a row, from 0.
        weight_R: what a row's loss counts in the sum.
    """

    labels: Labels
    index_R: Tensor
    group_R: Tensor
    weight_R: Tensor


def weighted_loss(
    x_RH: Tensor, head_DH: Tensor, rows: Rows, kind: Loss
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the rows' losses times their weights.

    Args:
        x_RH: the draft's normed outputs.
        head_DH: the draft's LM head. Under autocast the products are made in its type, sums and
            gradients in float32.

    Returns:
        The scalar; each row's loss without its weight [R], no gradient; the draft's top choice of
        each row, draft ids int64 [R].
    """
    dtype = type_of_products(x_RH)
    with torch.autocast(x_RH.device.type, enabled=False):
        loss, value_R, choice_R = _Chunked.apply(
            x_RH, head_DH, rows, kind, dtype, torch.is_grad_enabled()
        )
    return loss, value_R, choice_R


class _Chunked(torch.autograd.Function):
    """Makes both gradients while it makes the loss; no logit outlives its block."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RH: Tensor,
        head_DH: Tensor,
        rows: Rows,
        kind: Loss,
        dtype: torch.dtype,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, head = x_RH.to(dtype), head_DH.to(dtype)
        exact = torch.promote_types(x_RH.dtype, torch.float32)
        value_R = torch.empty(len(x), dtype=exact, device=x.device)
        choice_R = torch.empty(len(x), dtype=torch.int64, device=x.device)
        blend_R = _blend(x, head, rows, exact) if kind == "lk_lambda" else value_R
        ctx.gradients = None
        if with_gradient:
            grad_x = torch.zeros(x.shape, dtype=exact, device=x.device)
            grad_head = None
            if ctx.needs_input_grad[1]:  # a frozen head is spared a third of the products
                grad_head = torch.zeros(head.shape, dtype=exact, device=x.device)
            ctx.gradients = (grad_x, grad_head)
        for part in _blocks(len(x)):
            block = _Block(x[part], head, rows, part, exact)
            choice_R[part] = block.choice_r
            value_R[part], ce, tv = block.value(kind, blend_R[part])
            if with_gradient:
                for span, d_rC in block.gradient(ce, tv, rows.weight_R[part]):
                    grad_x[part] += d_rC.to(dtype) @ head[span]
                    if grad_head is not None:
                        grad_head[span] += d_rC.to(dtype).T @ x[part]
        loss = (value_R * rows.weight_R).sum()
        ctx.mark_non_differentiable(value_R, choice_R)
        ctx.types = (x_RH.dtype, head_DH.dtype)
        return loss, value_R, choice_R

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the loss was made without gradients, or gone through before")
        (grad_x, grad_head), ctx.gradients = ctx.gradients, None
        x_type, head_type = ctx.types
        grad_x = grad_x.mul_(grads[0]).to(x_type)
        if grad_head is not None:
            grad_head = grad_head.mul_(grads[0]).to(head_type)
        return grad_x, grad_head, None, None, None, None


class _Block:
    """Some rows against the whole draft vocabulary, a span of it at a time."""

    def __init__(
        self, x_rH: Tensor, head_DH: Tensor, rows: Rows, part: slice, exact: torch.dtype
    ) -> None:
        self.x_rH, self.head_DH, self.labels, self.exact = x_rH, head_DH, rows.labels, exact
        index = rows.index_R[part]
        self.positions = slice(int(index[0]), int(index[-1]) + 1)
        self.index_r = index - index[0]
        columns, width = max(1, ELEMENTS // ROWS), len(head_DH)
        self.spans = [slice(i, min(i + columns, width)) for i in range(0, width, columns)]
        self._only: tuple[Tensor, Tensor] | None = None
        self._normalise()

    def _logits(self, span: slice) -> tuple[Tensor, Tensor]:
        """The draft's [r, C] and the labels' [p, C]."""
        z_rC = (self.x_rH @ self.head_DH[span].T).to(self.exact)
        return z_rC, self.labels.logits(self.positions, span).to(self.exact)

    def _normalise(self) -> None:
        """log sum exp of both sides, and the draft's top choice."""
        log_z, log_y, top, choice = [], [], [], []
        for span in self.spans:
            z_rC, y_pC = self._logits(span)
            log_z.append(z_rC.logsumexp(-1))
            log_y.append(y_pC.logsumexp(-1))
            best = z_rC.max(-1)
            top.append(best.values)
            choice.append(best.indices + span.start)
        self.log_z_r1 = torch.stack(log_z, -1).logsumexp(-1, keepdim=True)
        self.log_y_p1 = torch.stack(log_y, -1).logsumexp(-1, keepdim=True)
        which = torch.stack(top, -1).argmax(-1, keepdim=True)
        self.choice_r = torch.stack(choice, -1).gather(-1, which)[:, 0]
        if len(self.spans) == 1:
            self._only = (z_rC, self._label(y_pC))

    def _label(self, y_pC: Tensor) -> Tensor:
        """p, [r, C]."""
        return y_pC.sub_(self.log_y_p1).exp_()[self.index_r]

    def _pairs(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Draft logits and p, [r, C] each, of every span; made once where there is but one."""
        for span in self.spans:
            if self._only is None:
                z_rC, y_pC = self._logits(span)
                yield span, z_rC, self._label(y_pC)
            else:
                yield span, *self._only

    def acceptance(self) -> Tensor:
        """a = sum min(p, q) of each row."""
        total = self.x_rH.new_zeros(len(self.x_rH), dtype=self.exact)
        for _, z, p in self._pairs():
            total += torch.minimum(p, (z - self.log_z_r1).exp_()).sum(-1)
        return total

    def value(self, kind: Loss, blend_r: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The rows' losses, and how much of its gradient is that of the cross-entropy and how much
        that of total variation; None where none is."""
        zero = self.x_rH.new_zeros(len(self.x_rH), dtype=self.exact)
        cross, negentropy, accepted, below = self.log_z_r1[:, 0], zero, zero, zero
        for _, z, p in self._pairs():
            if kind in ("soft_ce", "lk_lambda"):
                cross = cross - (p * z).sum(-1)
            if kind == "lk_lambda":
                negentropy = negentropy - torch.special.entr(p).sum(-1)
            if kind != "soft_ce":
                q = (z - self.log_z_r1).exp_()
                accepted = accepted + torch.minimum(p, q).sum(-1)
                below = below + (q * (q < p)).sum(-1)
        self.below_r1 = below[:, None]
        one = torch.ones_like(zero)
        match kind:
            case "soft_ce":
                return cross, one, None
            case "tv":
                return 1 - accepted, None, one
            case "lk_alpha":
                accepted = accepted.clamp(min=TINY)
                return -accepted.log(), None, 1 / accepted
            case "lk_lambda":
                mixed = blend_r * (cross + negentropy) + (1 - blend_r) * (1 - accepted)
                return mixed, blend_r, 1 - blend_r

    def gradient(
        self, ce_r: Tensor | None, tv_r: Tensor | None, weight_r: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """The loss's derivative in the draft's logits, span by span; uses the logits up.

        d CE / dz = q - p. Of total variation only the tokens with q below p count: with their mass
        b, d (1 - a) / dz = q (b - [q < p]).
        """
        for span, z, p in self._pairs():
            q = z.sub_(self.log_z_r1).exp_()
            tv = None
            if tv_r is not None:
                tv = q * (self.below_r1 - (q < p).to(q)) * (tv_r * weight_r)[:, None]
            if ce_r is None:
                assert tv is not None
                yield span, tv
                continue
            ce = q.sub_(p).mul_((ce_r * weight_r)[:, None])
            yield span, ce if tv is None else ce.add_(tv)


def _blend(x_RH: Tensor, head_DH: Tensor, rows: Rows, exact: torch.dtype) -> Tensor:
    """`lk_lambda`'s share of KL for each row: one value a draft step."""
    accepted_R = torch.empty(len(x_RH), dtype=exact, device=x_RH.device)
    for part in _blocks(len(x_RH)):
        accepted_R[part] = _Block(x_RH[part], head_DH, rows, part, exact).acceptance()
    count = torch.bincount(rows.group_R).clamp(min=1)
    mean = torch.bincount(rows.group_R, weights=accepted_R) / count
    return torch.exp(-ETA * mean).to(exact)[rows.group_R]


def _blocks(rows: int) -> list[slice]:
    return [slice(i, i + ROWS) for i in range(0, rows, ROWS)]
