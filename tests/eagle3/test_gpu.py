"""What only a CUDA device can show. Run with: make gpu"""

from __future__ import annotations

import pytest
import torch

from eagle3.train.attention import Plain
from eagle3.train.batch import pack
from eagle3.train.evaluate import chain_acceptance
from eagle3.train.flex import Flex
from eagle3.train.labels import Teacher
from eagle3.train.objective import objective
from tests.eagle3.train.random_draft import random_draft, random_sample
from tests.eagle3.train.test_attention import SCALING, Inputs

pytestmark = pytest.mark.gpu
SAMPLES = [random_sample(24, [(4, 20)], 1), random_sample(15, [(3, 8), (9, 15)], 2)]


def test_the_loss_and_its_gradients_are_those_of_the_cpu() -> None:
    head_VH = torch.randn(40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found = {}
    for device in ("cpu", "cuda"):
        draft = random_draft(torch.float64)
        draft.embed_VH = draft.embed_VH.to(device)
        draft = draft.to(device)
        teacher = Teacher.of(head_VH.to(device), draft, softcap=None)
        result = objective(draft, teacher, pack(SAMPLES, 3, torch.float64, device), 0.8)
        torch.autograd.backward(result.loss)
        found[device] = (float(result.loss.detach()), draft.fc.weight.grad, result.hits)
    assert found["cpu"][0] == pytest.approx(found["cuda"][0], abs=1e-9)
    assert found["cpu"][2] == found["cuda"][2]
    expected, grad = found["cpu"][1], found["cuda"][1]
    assert expected is not None
    assert grad is not None
    torch.testing.assert_close(grad.cpu(), expected)


def test_simulated_acceptance_is_that_of_the_cpu() -> None:
    counts = []
    for device in ("cpu", "cuda"):
        draft = random_draft(torch.float64)
        draft.embed_VH = draft.embed_VH.to(device)
        counts.append(chain_acceptance(draft.to(device), SAMPLES, depth=3))
    assert counts[0] == counts[1]


def test_flex_attention_and_its_gradients_are_the_definition() -> None:
    exact, inputs = Inputs(3, dim=16), Inputs(3, torch.float32, 16, "cuda")
    expected, expected_grads = exact.run(Plain(exact.batch, exact.rows, SCALING))
    found, grads = inputs.run(Flex(inputs.batch, inputs.rows, SCALING))
    for a, b in zip([found, *grads], [expected, *expected_grads], strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-3, atol=1e-3)
