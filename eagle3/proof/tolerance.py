"""How near two logits must lie for a choice between them to be a matter of rounding.

**float32.** The logits are computed once more in float64: a difference passes if both tokens lie
within 1e-5 of the largest logit there.

**bfloat16, float16.** There is no more exact computation that *is* plain decoding in that type, so
the logits of plain decoding itself are looked at, in units in the last place (ulp) of the type at
the largest logit x: `eps * 2 ** floor(log2 |x|)`. Two computations of one logit, by kernels for one
row and for several, agree in exact arithmetic. Each ends with rounding to the type, by at most half
a ulp. A gap between two logits takes part in four such roundings (two logits, each computed twice):
2 ulp, which are there even if all else is exact. The hidden state that the head reads was rounded
too, by half a ulp an entry: errors of single entries point in all directions, and over the sum they
add up to about the same again. So both tokens may lie within 4 ulp of the largest logit. In
bfloat16, with a largest logit of 20, that is 0.5: half precision cannot tell such tokens apart.
Whatever lies farther apart is a fault, or a target whose own layers enlarge rounding errors; either
way its output in this type depends on the kernels, and the proof says so.
"""

from __future__ import annotations

import math

import torch

EXACT_MARGIN = 1e-5
"""Of a float32 target, in logits computed in float64."""

ULPS = 4


def ulp(value: float, dtype: torch.dtype) -> float:
    """The distance between neighbouring numbers of a type at this magnitude."""
    info = torch.finfo(dtype)
    return float(info.eps * 2 ** math.floor(math.log2(max(abs(value), info.tiny))))


def allowed_margin(largest: float, dtype: torch.dtype) -> float:
    """How far below the largest logit a token may lie and still count as tied with it.

    Args:
        dtype: the type that the target was loaded in.
    """
    if dtype.itemsize >= torch.float32.itemsize:
        return EXACT_MARGIN
    return ULPS * ulp(largest, dtype)
