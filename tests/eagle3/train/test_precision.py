"""Training in bfloat16 beside float32 weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eagle3.train.precision import choose_precision, computing_in

CPU = torch.device("cpu")


def test_what_is_asked_for_is_what_runs() -> None:
    assert choose_precision("float32", CPU) == "float32"
    assert choose_precision("bfloat16", CPU) == "bfloat16"


@pytest.mark.parametrize(
    ("slow", "fast", "chosen"), [(2.0, 1.0, "bfloat16"), (1.1, 1.0, "float32")]
)
def test_auto_takes_bfloat16_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, slow: float, fast: float, chosen: str
) -> None:
    seconds = {torch.float32: slow, torch.bfloat16: fast}
    monkeypatch.setattr("eagle3.train.precision._seconds", seconds.__getitem__)
    assert choose_precision("auto", CPU) == chosen


def test_products_are_in_bfloat16_and_gradients_in_float32() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 48), torch.randn(16, 64)
    grads = []
    for precision in ("float32", "bfloat16"):
        linear.zero_grad()
        with computing_in(precision, CPU):
            out = linear(x)
        assert out.dtype == getattr(torch, precision)
        torch.autograd.backward(out.float().square().mean())
        assert linear.weight.grad is not None
        assert linear.weight.grad.dtype == torch.float32
        grads.append(linear.weight.grad.clone())
    exact, rounded = grads
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=2e-3)
