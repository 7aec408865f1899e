"""The type that a training step computes in: float32, or bfloat16 beside float32 weights.

With bfloat16 the products of linears, attention and the LM head are made in it (autocast); weights,
their gradients, the optimiser's moments and the sums of the loss stay in float32.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bfloat16"]

PAYS = 1.25
"""How much faster bfloat16 products must be: rounding costs a little, on many CPUs it is slower."""

_ROWS, _OUT, _IN = 384, 2048, 576


def choose_precision(
    setting: Literal["auto", "float32", "bfloat16"], device: torch.device
) -> Precision:
    """What `auto` stands for on this device: on a CPU both are timed, which takes a moment."""
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    slow, fast = _seconds(torch.float32), _seconds(torch.bfloat16)
    return "bfloat16" if slow > PAYS * fast else "float32"


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward and its loss."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def type_of_products(x: Tensor) -> torch.dtype:
    """What a product of a tensor is made in here: its own type, unless autocast is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _seconds(dtype: torch.dtype) -> float:
    """The least time of a product as training has many, out of ten."""
    x, w = torch.ones(_ROWS, _IN, dtype=dtype), torch.ones(_OUT, _IN, dtype=dtype)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        torch.nn.functional.linear(x, w)
        best = min(best, time.perf_counter() - started)
    return best
