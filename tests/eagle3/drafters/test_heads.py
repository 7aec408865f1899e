"""Medusa and Hydra: what they learn, what their trees hold, and what a session remembers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3.data.features import Sample
from eagle3.decode.drafter import Seen
from eagle3.decode.sampling import Sampling
from eagle3.drafters.guesses import acceptance, rank_accuracy
from eagle3.drafters.heads import DraftHeads, HeadDrafter
from eagle3.drafters.hydra import Hydra
from eagle3.drafters.medusa import Medusa
from eagle3.drafters.static import Layout, best_layout
from eagle3.train.batch import pack
from tests.eagle3.drafters.learned import LAYOUT, VOCAB, new_heads, permuted, trained

KINDS = [Medusa, Hydra]


def new(kind: type[Medusa] | type[Hydra], seed: int = 0, kept: Tensor | None = None) -> DraftHeads:
    target, _ = permuted()
    torch.manual_seed(seed)
    return new_heads(kind, target, kept)


def random(kind: type[Medusa] | type[Hydra], kept: Tensor | None = None) -> DraftHeads:
    """Heads that say something of their own."""
    heads = new(kind, kept=kept)
    with torch.no_grad():
        for p in heads.parameters():
            p.normal_(0, 0.3)
    return heads.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind: type[Medusa] | type[Hydra]) -> None:
    """Three heads can reach tau 3.83 here, where answers end by length."""
    heads = new(kind)
    assert heads.acceptance(permuted()[1][-8:]) < 1.2  # they start by guessing the root again
    assert trained(heads).tau > 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_of_the_heads_cross_entropies(
    kind: type[Medusa] | type[Hydra],
) -> None:
    kept = torch.arange(0, VOCAB, 2)
    heads = random(kind, kept)
    samples = permuted()[1][:2]
    total = torch.zeros(())
    for k in range(3):
        losses = []
        for s in samples:
            (start, end), ids = s.spans[0], s.input_ids
            for j in range(start - 1, end - 2 - k):
                label = int(ids[j + 2 + k])
                if label not in kept:
                    continue
                read = [ids[j + 1 + i].view(1) for i in range(k + 1)]
                logits = heads.heads[k](heads.state(k, s.hidden[j : j + 1], read))[0]
                losses.append(-logits.log_softmax(-1)[label // 2])
        total = total + heads.decay**k * torch.stack(losses).mean()
    loss, metrics = heads.loss(pack(samples, 3))
    torch.testing.assert_close(loss, total)
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()))
    learned = list(heads.parameters())
    for found, expected in zip(
        torch.autograd.grad(loss, learned), torch.autograd.grad(total, learned), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_products_in_bfloat16_give_nearly_the_same_loss(
    kind: type[Medusa] | type[Hydra],
) -> None:
    heads, batch = random(kind), pack(permuted()[1][:2], 3)
    exact = float(heads.loss(batch)[0].detach())
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = heads.loss(batch)
    assert float(loss.detach()) == pytest.approx(exact, rel=0.02)
    torch.autograd.backward(loss)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in heads.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_acceptance_is_that_of_chains_along_the_answer(
    kind: type[Medusa] | type[Hydra],
) -> None:
    heads, samples = new(kind), permuted()[1][-8:]
    trained(heads, tokens=4_000)
    rounds = emitted = 0
    for s in samples:
        end, at = s.spans[0][1], s.spans[0][0]  # the first token comes from the prefill
        while at + 1 < end:
            root = s.input_ids[at].view(1)
            tokens = heads.grow(s.hidden[at - 1 : at], root, Layout.chain(3), 3)[0, 1:].tolist()
            answer = s.input_ids[at + 1 : end].tolist()
            n = 0
            while n < min(3, len(answer)) and tokens[n] == answer[n]:
                n += 1
            emitted += min(n + 1, len(answer))
            at += min(n + 1, len(answer))
            rounds += 1
    found = acceptance(heads, samples, 3)
    assert (found.rounds, found.emitted) == (rounds, emitted)
    assert 1.1 < found.length < 3.9


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_holds_the_guess_of_its_rank_after_its_own_path(
    kind: type[Medusa] | type[Hydra],
) -> None:
    heads, hidden_BH = random(kind), permuted()[1][0].hidden[4:6]
    roots_B = torch.tensor([7, 9])
    tokens_BN = heads.grow(hidden_BH, roots_B, LAYOUT, 3)
    for b in range(2):
        for node, path in enumerate(LAYOUT.paths, start=1):
            line = [tokens_BN[b, i].view(1) for i in LAYOUT.lines[node][:-1]]
            guesses = heads.likeliest(len(path) - 1, hidden_BH[b : b + 1], line, 2)[0]
            assert int(tokens_BN[b, node]) == int(guesses[path[-1]])
    cousins = torch.equal(tokens_BN[:, [6]], tokens_BN[:, [7]])
    assert cousins is (kind is Medusa)  # whose guesses know nothing of the path


def test_the_layout_is_chosen_by_what_was_right() -> None:
    heads = new(Medusa)
    trained(heads, tokens=4_000)
    accuracy_KI = rank_accuracy(heads, permuted()[1][-8:], 3, 5)
    assert accuracy_KI.shape == (3, 5)
    assert bool((accuracy_KI.sum(1) <= 1 + 1e-6).all())
    first = acceptance(heads, permuted()[1][-8:], 1)
    assert first.length > 1  # so the best guess has a node
    assert (0,) in best_layout(accuracy_KI, 4).paths


def test_a_layout_asks_for_no_more_guesses_than_the_draft_vocabulary_has() -> None:
    heads = random(Medusa, kept=torch.tensor([3, 9, 20]))
    accuracy_KI = rank_accuracy(heads, permuted()[1][-8:], 3, 5)
    assert accuracy_KI.shape == (3, 3)
    layout = best_layout(accuracy_KI, 30)
    assert layout.width == 3
    hidden_BH = permuted()[1][0].hidden[:1]
    assert heads.grow(hidden_BH, torch.tensor([3]), layout, 3).shape == (1, 31)


def prefill(sample: Sample, rows: int) -> Seen:
    ids = sample.input_ids.tolist()
    return Seen(ids[:rows], ids[1 : rows + 1], None, sample.hidden[:rows])


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_remembers_what_one_that_starts_there_knows(
    kind: type[Medusa] | type[Hydra],
) -> None:
    drafter = HeadDrafter(random(kind), LAYOUT)
    one, two = permuted()[1][:2]
    session = drafter.session(2, 64)
    generator = torch.Generator()
    for slot, sample in enumerate((one, two)):
        session.open(slot, sample.input_ids[:3].tolist(), Sampling(), generator)
        session.observe({slot: prefill(sample, 3)})
    for start in range(3, 15, 3):
        ids = one.input_ids.tolist()
        session.observe(
            {0: Seen(ids[start : start + 3], ids[start + 1 : start + 4], None,
                     one.hidden[start : start + 3])}
        )  # fmt: skip
    rebuilt = drafter.session(1, 64)
    rebuilt.open(0, one.input_ids[:3].tolist(), Sampling(), generator)
    rebuilt.observe({0: prefill(one, 15)})
    both = session.propose({0: 2, 1: 1})
    assert both[0].tree == rebuilt.propose({0: 2})[0].tree
    assert [max(both[slot].tree.depths) for slot in (0, 1)] == [2, 1]
    alone = drafter.session(1, 64)
    alone.open(0, two.input_ids[:3].tolist(), Sampling(), generator)
    alone.observe({0: prefill(two, 3)})
    assert both[1].tree == alone.propose({0: 1})[0].tree
    session.close(0)
    session.open(0, [1], Sampling(), generator)
