"""The fast implementations of training-time-test attention against the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from eagle3.train import attention
from eagle3.train.attention import Attention, Blocked, KeyValue, Plain
from eagle3.train.batch import pack
from eagle3.train.flex import Flex
from eagle3.train.labels import Teacher
from eagle3.train.objective import objective
from tests.eagle3.train.largest import Largest
from tests.eagle3.train.random_draft import random_draft, random_sample

SCALING = 0.3
SAMPLES = [
    random_sample(14, [(4, 9), (11, 14)], seed=1),
    random_sample(9, [(0, 0)], seed=2),  # no row of it drafts
    random_sample(23, [(3, 23)], seed=3),
]


class Inputs:
    """Random queries, far and near keys of a packed batch, and a weight for each output."""

    def __init__(
        self,
        near: int,
        dtype: torch.dtype = torch.float64,
        dim: int = 6,
        device: str = "cpu",
    ) -> None:
        self.batch = pack(SAMPLES, 3, dtype, device)
        self.rows = self.batch.supervised_ST[0].nonzero()[:, 0]
        generator = torch.Generator().manual_seed(near)

        def random(*shape: int) -> Tensor:
            made = torch.randn(*shape, generator=generator, dtype=torch.float64)
            return made.to(device, dtype).requires_grad_()

        total, rows = len(self.batch.ids_T), len(self.rows)
        self.query = random(rows, 4, dim)
        self.far = (random(total, 2, dim), random(total, 2, dim))
        self.near = [(random(rows, 2, dim), random(rows, 2, dim)) for _ in range(near)]
        self.weight = random(rows, 4, dim).detach()

    def run(self, attend: Attention) -> tuple[Tensor, list[Tensor]]:
        """The output, and the gradient in every input."""
        out = attend(self.query, self.far, self.near)
        leaves = [self.query, *self.far, *(x for pair in self.near for x in pair)]
        return out.detach(), list(torch.autograd.grad((out * self.weight).sum(), leaves))


@pytest.mark.parametrize("block", [128, 4], ids=["one block", "many blocks"])
@pytest.mark.parametrize("near", [0, 1, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_blocked_is_the_definition(
    block: int, near: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK", block)
    exact, inputs = Inputs(near), Inputs(near, dtype)
    expected, expected_grads = exact.run(Plain(exact.batch, exact.rows, SCALING))
    found, grads = inputs.run(Blocked(inputs.batch, inputs.rows, SCALING))
    for a, b in zip([found, *grads], [expected, *expected_grads], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance)


def test_blocked_in_bfloat16() -> None:
    exact, inputs = Inputs(3), Inputs(3, torch.float32)
    expected, expected_grads = exact.run(Plain(exact.batch, exact.rows, SCALING))
    with torch.autocast("cpu", torch.bfloat16):
        found, grads = inputs.run(Blocked(inputs.batch, inputs.rows, SCALING))
    assert found.dtype == torch.bfloat16
    assert grads[0].dtype == torch.float32
    for a, b in zip([found, *grads], [expected, *expected_grads], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0.05, atol=0.05)


def detached(pair: KeyValue) -> KeyValue:
    return pair[0].detach(), pair[1].detach()


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_mask_and_the_joint_softmax_of_flex() -> None:
    """Without its compiler, and so without gradients, flex attention runs on a CPU too."""
    inputs = Inputs(near=3)
    expected = Plain(inputs.batch, inputs.rows, SCALING)(inputs.query, inputs.far, inputs.near)
    flex = Flex(inputs.batch, inputs.rows, SCALING, kernel=flex_attention)
    found = flex(inputs.query.detach(), detached(inputs.far), [detached(x) for x in inputs.near])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_memory_of_a_step_grows_with_its_rows_and_not_with_their_square() -> None:
    """Forward and backward of 600 rows, 7 steps: the largest tensor is a block's mask."""
    draft = random_draft()
    sample = random_sample(602, [(1, 602)], seed=5)
    batch = pack([sample], 7)
    teacher = Teacher.of(torch.randn(40, 16), draft, softcap=None)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        torch.autograd.backward(objective(draft, teacher, batch, 0.8).loss)
    assert largest.numel <= 2 * attention.BLOCK * 602
    assert largest.numel < 602 * 602 / 2
