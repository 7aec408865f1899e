"""The loss: its value, its gradients, and which rows it looks at."""

from __future__ import annotations

import torch

from eagle3.train.batch import pack
from eagle3.train.evaluate import Acceptance, chain_acceptance
from eagle3.train.loss import soft_cross_entropy, target_distribution
from eagle3.train.objective import Teacher, objective
from eagle3.train.ttt import unroll
from tests.eagle3.train.random_draft import random_draft, random_sample


def test_fused_loss_equals_the_plain_formula_and_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    label = torch.randn(50, 11, generator=generator, dtype=torch.float64).softmax(-1)
    index = torch.randint(0, 50, (700,), generator=generator)
    plain = -0.25 * (label[index] * (x @ head.T).log_softmax(-1)).sum()
    expected = torch.autograd.grad(plain, [x, head])
    fused, choice = soft_cross_entropy(x, head, label, index, 0.25)
    torch.testing.assert_close(fused, plain)
    for a, b in zip(torch.autograd.grad(fused, [x, head]), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(choice, (x @ head.T).argmax(-1))


def test_objective_is_the_decayed_sum_of_means_over_supervised_rows() -> None:
    draft = random_draft(torch.float64)
    head_VH = torch.randn(40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    teacher = Teacher.of(head_VH, draft, softcap=None)
    samples = [random_sample(12, [(3, 9)], 1), random_sample(10, [(2, 5), (7, 10)], 2)]
    samples[0].argmax[5] = 0  # outside the draft vocabulary: ids 5 to 34
    batch = pack(samples, 3, torch.float64)
    result = objective(draft, teacher, batch, decay=0.8)

    rows = batch.supervised_ST[0].nonzero()[:, 0]
    outs = list(unroll(draft, batch, rows, 3))
    total = torch.zeros((), dtype=torch.float64)
    for k, out in enumerate(outs):
        losses = []
        for index, row in enumerate(rows.tolist()):
            position = row + 1 + k
            if not batch.supervised_ST[k][row] or not draft.t2d[batch.argmax_T[position]]:
                continue
            label = target_distribution(batch.hidden_TH[position][None], teacher.head_DH, None)[0]
            losses.append(-(label * draft.logits(out[index][None])[0].log_softmax(-1)).sum())
        assert result.rows[k] == len(losses)
        total = total + 0.8**k * torch.stack(losses).mean()
    torch.testing.assert_close(result.loss, total)
    assert result.outside == [1, 1, 1]


def test_masked_rows_send_no_gradient() -> None:
    """Changing what only unsupervised rows predict changes nothing."""
    draft = random_draft(torch.float64)
    teacher = Teacher.of(torch.eye(40, 16, dtype=torch.float64), draft, softcap=None)
    sample = random_sample(12, [(5, 10)], 3)
    before = objective(draft, teacher, pack([sample], 2, torch.float64), 0.8).loss
    sample.hidden[[0, 1, 2, 3, 4, 9, 10, 11]] += 7.0
    after = objective(draft, teacher, pack([sample], 2, torch.float64), 0.8).loss
    assert torch.equal(before, after)


def test_simulated_acceptance_of_a_draft_that_is_never_right() -> None:
    draft = random_draft()
    sample = random_sample(20, [(6, 16)], 4)
    sample.input_ids[:] = 0  # token 0 is outside the draft vocabulary: it can never be proposed
    found = chain_acceptance(draft, [sample], depth=3)
    assert found == Acceptance(3, rounds=9, emitted=9, reached=[9, 0, 0], accepted=[0, 0, 0])
    assert found.length == 1.0


def test_simulated_acceptance_of_a_draft_that_is_always_right() -> None:
    draft = random_draft()
    with torch.no_grad():
        draft.lm_head.weight.zero_()  # argmax of equal logits is draft id 0, target id 5
    sample = random_sample(20, [(6, 16)], 4)
    sample.input_ids[:] = 5
    found = chain_acceptance(draft, [sample], depth=3)
    # The first token comes from the prefill; of the other nine, rounds give 4, 4 and 1.
    assert (found.rounds, found.emitted) == (3, 9)
    assert found.by_position == [1.0, 1.0, 1.0]
