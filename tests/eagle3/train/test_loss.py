"""The chunked losses against the plain formulas, and how much they hold at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3.train import loss as chunked
from eagle3.train.labels import HeadLabels
from eagle3.train.loss import Loss, Rows, weighted_loss
from tests.eagle3.train.largest import Largest

KINDS: tuple[Loss, ...] = ("soft_ce", "tv", "lk_alpha", "lk_lambda")


class Case:
    """Random rows whose labels come from a target's hidden states."""

    def __init__(self, rows: int, vocab: int, softcap: float | None = None) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        positions = rows // 3
        self.x = random(rows, 8).requires_grad_()
        self.head = random(vocab, 8).requires_grad_()
        self.hidden, self.teacher, self.softcap = random(positions, 8), random(vocab, 8), softcap
        spread = torch.randint(0, positions, (rows - positions,), generator=generator)
        self.index = torch.cat([torch.arange(positions), spread]).sort().values
        self.group = torch.randint(0, 3, (rows,), generator=generator)
        self.weight = torch.rand(rows, generator=generator, dtype=torch.float64)

    def rows(self, dtype: torch.dtype = torch.float64) -> Rows:
        labels = HeadLabels(self.hidden.to(dtype), self.teacher.to(dtype), self.softcap)
        return Rows(labels, self.index, self.group, self.weight.to(dtype))

    def plain(self, kind: Loss) -> Tensor:
        """Each row's loss, straight from the formulas, for autograd to differentiate."""
        y = self.hidden @ self.teacher.T
        if self.softcap is not None:
            y = self.softcap * torch.tanh(y / self.softcap)
        p = y.softmax(-1)[self.index]
        log_q = (self.x @ self.head.T).log_softmax(-1)
        accepted = torch.minimum(p, log_q.exp()).sum(-1)
        cross = -(p * log_q).sum(-1)
        match kind:
            case "soft_ce":
                return cross
            case "tv":
                return 1 - accepted
            case "lk_alpha":
                return -accepted.log()
            case "lk_lambda":
                means = [accepted.detach()[self.group == g].mean() for g in range(3)]
                blend = torch.exp(-3 * torch.stack(means))[self.group]
                return blend * (cross + (p * p.log()).sum(-1)) + (1 - blend) * (1 - accepted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [100, 7], ids=["one span", "many spans"])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_values_and_gradients_are_those_of_the_formulas(
    kind: Loss, columns: int, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "ROWS", 16)
    monkeypatch.setattr(chunked, "ELEMENTS", 16 * columns)
    case = Case(70, 31, softcap)
    plain_R = case.plain(kind)
    expected = torch.autograd.grad((plain_R * case.weight).sum(), [case.x, case.head])
    loss, value_R, choice_R = weighted_loss(case.x, case.head, case.rows(), kind)
    torch.testing.assert_close(value_R, plain_R.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss, (plain_R * case.weight).sum())
    assert torch.equal(choice_R, (case.x @ case.head.T).argmax(-1))
    for found, wanted in zip(torch.autograd.grad(loss, [case.x, case.head]), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_sums_stay_in_float32(kind: Loss) -> None:
    case = Case(70, 31)
    x, head = (t.detach().float().requires_grad_() for t in (case.x, case.head))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, value_R, _ = weighted_loss(x, head, case.rows(torch.float32), kind)
    assert loss.dtype == value_R.dtype == torch.float32
    torch.testing.assert_close(value_R.double(), case.plain(kind).detach(), rtol=0.05, atol=0.05)
    assert [g.dtype for g in torch.autograd.grad(loss, [x, head])] == [torch.float32] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_memory_grows_neither_with_rows_nor_with_the_vocabulary(
    kind: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "ROWS", 16)
    monkeypatch.setattr(chunked, "ELEMENTS", 16 * 64)
    case = Case(200, 500)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        loss, _, _ = weighted_loss(case.x, case.head, case.rows(), kind)
        loss.backward()  # type: ignore[no-untyped-call]
    assert largest.numel == case.head.numel() == 4000  # a logit of each row would be 100,000


def test_it_cannot_be_gone_through_twice() -> None:
    case = Case(9, 5)
    loss, _, _ = weighted_loss(case.x, case.head, case.rows(), "soft_ce")
    torch.autograd.backward(loss, retain_graph=True)
    with pytest.raises(RuntimeError, match="gone through before"):
        torch.autograd.backward(loss)


def test_no_rows_is_no_loss() -> None:
    case = Case(9, 5)
    labels = HeadLabels(case.hidden[:0], case.teacher, None)
    empty = torch.zeros(0, dtype=torch.int64)
    rows = Rows(labels, empty, empty, case.weight[:0])
    for kind in KINDS:
        loss, _, _ = weighted_loss(case.x[:0], case.head, rows, kind)
        assert float(loss.detach()) == 0.0
