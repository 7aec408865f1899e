"""Norm and activation against their plain forms."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3.lean import RMSNorm, swiglu


def test_gradients_are_those_of_the_function() -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(5, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    norm = RMSNorm(6, 1e-3).double()
    norm.weight.data = torch.randn(6, dtype=torch.float64)
    assert torch.autograd.gradcheck(norm, x)
    assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(norm, {"weight": w}, x),
                                    norm.weight)  # fmt: skip
    assert torch.autograd.gradcheck(swiglu, (x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_the_plain_ones(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 7, 64, dtype=dtype)
    norm, plain = RMSNorm(64, 1e-5), LlamaRMSNorm(64, 1e-5)
    norm.weight.data = plain.weight.data = torch.randn(64)
    assert torch.equal(norm(x), plain(x))
    assert norm(x).dtype == plain(x).dtype
    assert torch.equal(swiglu(x, y), silu(x) * y)


def test_only_the_inputs_are_kept() -> None:
    kept: list[torch.Tensor] = []
    x, y = (torch.randn(3, 64, requires_grad=True) for _ in range(2))

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        swiglu(RMSNorm(64, 1e-5)(x), y).sum()
    wide = {t.data_ptr() for t in kept if t.numel() == x.numel()}
    assert len(wide) == 3  # x, the normed x, and y
