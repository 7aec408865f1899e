"""The loss: its value, its gradients, and which rows it looks at."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.data.features import Sample
from eagle3.draft import Draft
from eagle3.train.batch import Batch, pack
from eagle3.train.evaluate import Acceptance, acceptances, chain_acceptance, held_out_loss
from eagle3.train.labels import Teacher
from eagle3.train.objective import Objective, Per, Supervised, objective, score, weights
from eagle3.train.ttt import unroll
from tests.eagle3.train.random_draft import random_draft, random_sample

HEAD_VH = torch.randn(40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
DECAY = 0.8


def samples() -> list[Sample]:
    """Two sequences, one of them with two answers; one label lies outside the draft vocabulary."""
    made = [random_sample(12, [(3, 9)], 1), random_sample(10, [(2, 5), (7, 10)], 2)]
    made[0].argmax[5] = 0  # the draft vocabulary is ids 5 to 34
    return made


def plain_losses(draft: Draft, batch: Batch, steps: int) -> list[list[tuple[int, Tensor]]]:
    """For each step the sequence and cross-entropy of every row that counts, one at a time."""
    rows = batch.supervised_ST[0].nonzero()[:, 0]
    head_DH = HEAD_VH[vocab.kept_ids(draft.d2t)]
    out: list[list[tuple[int, Tensor]]] = []
    for k, step in enumerate(unroll(draft, batch, rows, steps)):
        losses = []
        for index, row in enumerate(rows.tolist()):
            position = row + 1 + k
            if batch.supervised_ST[k][row] and draft.t2d[batch.argmax_T[position]]:
                label = (head_DH @ batch.hidden_TH[position]).softmax(-1)
                log_q = draft.logits(step[index][None])[0].log_softmax(-1)
                losses.append((int(row >= batch.lengths[0]), -(label * log_q).sum()))
        out.append(losses)
    return out


def test_objective_is_the_decayed_sum_of_means_over_supervised_rows() -> None:
    draft = random_draft(torch.float64)
    teacher = Teacher.of(HEAD_VH, draft, softcap=None)
    batch = pack(samples(), 3, torch.float64)
    result = objective(draft, teacher, batch, DECAY)
    plain = plain_losses(draft, batch, 3)
    assert result.rows == [len(losses) for losses in plain]
    assert result.outside == [1, 1, 1]
    means = [torch.stack([x for _, x in losses]).mean() for losses in plain]
    torch.testing.assert_close(result.loss, means[0] + DECAY * means[1] + DECAY**2 * means[2])
    sums = [float(torch.stack([x for _, x in losses]).detach().sum()) for losses in plain]
    assert result.step_loss == pytest.approx(sums)


def test_per_sequence_a_long_answer_counts_as_much_as_a_short_one() -> None:
    draft = random_draft(torch.float64)
    teacher = Teacher.of(HEAD_VH, draft, softcap=None)
    batch = pack(samples(), 3, torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for k, losses in enumerate(plain_losses(draft, batch, 3)):
        means = [
            torch.stack([x for s, x in losses if s == sequence]).mean()
            for sequence in {s for s, _ in losses}
        ]
        total = total + DECAY**k * torch.stack(means).mean()
    found = objective(draft, teacher, batch, DECAY, per="sequence").loss
    torch.testing.assert_close(found, total)


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_parts_of_a_step_add_up_to_the_whole(per: Per) -> None:
    draft = random_draft(torch.float64)
    teacher = Teacher.of(HEAD_VH, draft, softcap=None)
    whole = objective(draft, teacher, pack(samples(), 3, torch.float64), DECAY, per=per)
    batches = [pack([sample], 3, torch.float64) for sample in samples()]
    parts = [Supervised.of(draft, batch) for batch in batches]
    shares = weights(parts, 3, DECAY, per)
    scores = [
        score(draft, teacher, batch, part, share)
        for batch, part, share in zip(batches, parts, shares, strict=True)
    ]
    both = Objective.total(scores, steps=3)
    torch.testing.assert_close(both.loss, whole.loss.detach())
    parameters = [p for p in draft.parameters() if p.requires_grad]
    for found, expected in zip(
        torch.autograd.grad(torch.stack([s.loss for s in scores]).sum(), parameters),
        torch.autograd.grad(whole.loss, parameters),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (both.hits, both.rows, both.outside) == (whole.hits, whole.rows, whole.outside)


def test_a_step_made_again_gives_the_same_bits_and_keeps_less() -> None:
    draft = random_draft()
    teacher = Teacher.of(HEAD_VH.float(), draft, softcap=None)
    batch = pack([random_sample(80, [(1, 80)], 1)], 7)
    found = {}
    for recompute in (False, True):
        kept = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        draft.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = objective(draft, teacher, batch, DECAY, recompute=recompute).loss
        total = kept  # before the backward pass makes some of it again
        torch.autograd.backward(loss)
        found[recompute] = total, [p.grad for p in draft.parameters() if p.requires_grad]
    assert found[True][0] < 0.5 * found[False][0]
    for again, once in zip(found[True][1], found[False][1], strict=True):
        assert again is not None
        assert once is not None
        assert torch.equal(again, once)


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


def test_rounds_of_another_depth_are_those_of_that_depth_alone() -> None:
    draft, sample = random_draft(), random_sample(40, [(6, 22), (30, 40)], 4)
    shallow, deep = acceptances(draft, [sample], (2, 5))
    assert shallow == chain_acceptance(draft, [sample], 2)
    assert deep == chain_acceptance(draft, [sample], 5)


def test_held_out_loss_is_that_of_one_step_over_all_samples() -> None:
    draft = random_draft(torch.float64)
    teacher = Teacher.of(HEAD_VH, draft, softcap=None)
    silent = random_sample(8, [(3, 4)], 9)  # one token: no row to draft from
    found = held_out_loss(draft, teacher, [*samples(), silent], 3, DECAY)
    whole = objective(draft, teacher, pack(samples(), 3, torch.float64), DECAY)
    assert found == pytest.approx(float(whole.loss.detach()))
