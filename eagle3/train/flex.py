"""Training-time-test attention on a GPU: flex attention for the far keys.

Shapes as in attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from eagle3.train.attention import KeyValue, Plain, join
from eagle3.train.batch import Batch
from eagle3.train.precision import type_of_products

NARROWEST = 16
"""The kernel has no smaller heads, and no float64: there the definition is used."""

Kernel = Callable[..., Any]


@cache
def compiled() -> Kernel:
    """The fused kernel; made at its first use, for that loads the compiler."""
    kernel: Kernel = torch.compile(flex_attention, dynamic=True)
    return kernel


class Flex:
    """Its mask leaves out blocks of keys that no row of a block of rows sees: other sequences, and
    what comes later."""

    def __init__(
        self, batch: Batch, rows_R: Tensor, scaling: float, kernel: Kernel | None = None
    ) -> None:
        self.batch, self.rows_R, self.scaling = batch, rows_R, scaling
        self.kernel = kernel
        sequence_T = batch.sequence_T

        def sees(_batch: Tensor, _head: Tensor, row: Tensor, key: Tensor) -> Tensor:
            at = rows_R[row]
            return (key <= at) & (sequence_T[key] == sequence_T[at])

        self.mask = create_block_mask(
            sees, None, None, len(rows_R), len(sequence_T), device=rows_R.device
        )

    def __call__(self, query_RQD: Tensor, far: KeyValue, near: Sequence[KeyValue]) -> Tensor:
        dtype = type_of_products(query_RQD)
        if self.kernel is None and (dtype == torch.float64 or query_RQD.shape[-1] < NARROWEST):
            return Plain(self.batch, self.rows_R, self.scaling)(query_RQD, far, near)
        kernel = self.kernel or compiled()
        query, key, value = (x.to(dtype).transpose(0, 1)[None] for x in (query_RQD, *far))
        out, aux = kernel(
            query,
            key,
            value,
            block_mask=self.mask,
            scale=self.scaling,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        exact = torch.promote_types(dtype, torch.float32)
        own = [(k.to(exact), v.to(exact)) for k, v in near]
        far_out, far_lse = out[0].transpose(0, 1).to(exact), aux.lse[0].transpose(0, 1)
        return join(query_RQD.to(exact), far_out, far_lse, own, self.scaling).to(dtype)
