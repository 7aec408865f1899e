"""EAGLE, EAGLE-2 and HASS: what they learn, the context they learn in, and their trees."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.data.features import Sample
from eagle3.decode.drafter import Seen
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.draft import DraftCache
from eagle3.drafters.eagle import Eagle, EagleDrafter
from eagle3.drafters.eagle2 import Eagle2
from eagle3.drafters.hass import TOP, Hass
from eagle3.train.batch import Batch, pack
from eagle3.train.objective import Supervised
from eagle3.train.ttt import unroll
from tests.eagle3.drafters.learned import LAYOUT, new_eagle, permuted, trained
from tests.eagle3.train.random_draft import CONFIG, random_sample

KINDS = [Eagle, Hass]
SAMPLES = [random_sample(14, [(4, 9), (11, 14)], 1), random_sample(17, [(3, 17)], 3)]


def new(kind: type[Eagle], seed: int = 0) -> Eagle:
    target, _ = permuted()
    torch.manual_seed(seed)
    return new_eagle(kind, target)


def random_eagle(kind: type[Eagle], dtype: torch.dtype = torch.float64) -> Eagle:
    generator = torch.Generator().manual_seed(0)
    embed_VH, head_VH = torch.randn(2, 40, 16, generator=generator, dtype=dtype)
    draft = kind(CONFIG, embed_VH, torch.arange(5, 35), head_VH, depth=3).to(dtype)
    with torch.no_grad():
        for p in draft.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=dtype)
            p.copy_(noise * 0.3 if p.dim() > 1 else 1 + 0.1 * noise)
    return draft.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind: type[Eagle]) -> None:
    """Chains of 3 can reach tau 3.83 here, where answers end by length."""
    draft = new(kind)
    assert draft.acceptance(permuted()[1][-8:]) < 1.5
    head_DH = draft.lm_head.weight.clone()
    assert trained(draft, tokens=5_000).tau > 3.0
    assert torch.equal(draft.lm_head.weight, head_DH)  # the target's, frozen


@torch.inference_mode()
def test_a_later_step_of_training_is_a_later_token_of_a_literal_chain() -> None:
    """Every row of every step, float64: the context is that of decoding."""
    draft, batch, steps = random_eagle(Hass), pack(SAMPLES, 4, torch.float64), 4
    rows = [
        start + row
        for start, length in zip(batch.starts, batch.lengths, strict=True)
        for row in range(length - steps)
    ]
    outs = list(
        unroll(draft, batch, torch.tensor(rows), steps, features_TH=batch.hidden_TH, through=False)
    )
    worst = 0.0
    for index, flat in enumerate(rows):
        start = max(s for s in batch.starts if s <= flat)
        for k, expected in enumerate(literal_chain(draft, batch, start, flat - start, steps)):
            worst = max(worst, float((outs[k][index] - expected).abs().max()))
    assert worst < 1e-10


def literal_chain(draft: Eagle, batch: Batch, start: int, row: int, steps: int) -> list[Tensor]:
    """Read rows 0..row with true features, then one token at a time with the draft's own."""
    ids, cache = batch.ids_T[start:], DraftCache(row + steps)
    read = torch.arange(row + 1)
    out = draft(ids[read + 1], batch.hidden_TH[start : start + row + 1], read, cache)[-1:]
    cache.advance(row + 1)
    outs = [out[0]]
    for k in range(1, steps):
        out = draft(ids[row + 1 + k].view(1), out, torch.tensor([row + k]), cache)
        cache.advance(1)
        outs.append(out[0])
    return outs


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_papers(kind: type[Eagle]) -> None:
    """Smooth L1, a tenth of the cross-entropy, and for HASS that over the target's top tokens."""
    draft, batch = random_eagle(kind), pack(SAMPLES, kind.steps, torch.float64)
    part = Supervised.of(draft, batch)
    outs = list(
        unroll(draft, batch, part.rows_R, kind.steps, features_TH=batch.hidden_TH, through=False)
    )
    head_DH, total = draft.lm_head.weight, torch.zeros((), dtype=torch.float64)
    for k in range(kind.steps):
        losses = []
        for n in (part.step_N == k).nonzero()[:, 0]:
            x_H, true_H = outs[k][part.row_N[n]], batch.hidden_TH[part.position_N[n]]
            p_D = (head_DH @ true_H).softmax(-1)
            log_q_D = (head_DH @ x_H).log_softmax(-1)
            loss = F.smooth_l1_loss(x_H, true_H) - 0.1 * (p_D * log_q_D).sum()
            if kind is Hass:
                best = p_D.topk(TOP).indices
                loss = loss - (p_D[best] * log_q_D[best]).sum()
            losses.append(loss)
        total = total + torch.stack(losses).mean()
    loss, metrics = draft.loss(batch)
    torch.testing.assert_close(loss, total)
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()))
    learned = [p for p in draft.parameters() if p.requires_grad]
    for found, expected in zip(
        torch.autograd.grad(loss, learned), torch.autograd.grad(total, learned), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_products_in_bfloat16_give_nearly_the_same_loss(kind: type[Eagle]) -> None:
    draft, batch = random_eagle(kind, torch.float32), pack(SAMPLES, kind.steps)
    exact = float(draft.loss(batch)[0].detach())
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = draft.loss(batch)
    assert float(loss.detach()) == pytest.approx(exact, rel=0.02)
    torch.autograd.backward(loss)
    assert draft.lm_head.weight.grad is None
    assert draft.fc.weight.grad is not None
    assert draft.fc.weight.grad.dtype == torch.float32


def test_no_gradient_flows_from_a_step_into_the_one_before() -> None:
    draft, batch = random_eagle(Hass), pack(SAMPLES, 2, torch.float64)
    hidden_TH = batch.hidden_TH.clone().requires_grad_()
    rows_R = torch.tensor([3, 4])
    for through in (True, False):
        first, second = unroll(draft, batch, rows_R, 2, features_TH=hidden_TH, through=through)
        (grad,) = torch.autograd.grad(second.sum(), first, allow_unused=True)
        assert (grad is not None) is through


def test_noise_is_for_training_alone() -> None:
    draft, batch = random_eagle(Eagle), pack(SAMPLES, 1, torch.float64)
    assert torch.equal(draft.loss(batch)[0], draft.loss(batch)[0])
    draft.train()
    assert not torch.equal(draft.loss(batch)[0], draft.loss(batch)[0])


def test_a_static_tree_holds_the_guess_of_its_rank_after_its_own_path() -> None:
    draft = random_eagle(Eagle)
    session = EagleDrafter(draft, LAYOUT).session(2, 64)
    generator = torch.Generator()
    for slot, sample in enumerate(SAMPLES):  # different lengths: 14 and 17
        session.open(slot, [1], Sampling(), generator)
        session.observe({slot: whole(sample)})
    proposals = session.propose({0: 3, 1: 2})
    assert [max(proposals[slot].tree.depths) for slot in (0, 1)] == [3, 2]
    for slot, sample in enumerate(SAMPLES):
        tree = proposals[slot].tree
        for node, path in enumerate(LAYOUT.paths[: len(tree.tokens)], start=1):
            line = [tree.tokens[n - 1] for n in LAYOUT.lines[node][1:-1]]
            ranked = draft.logits(after(draft, sample, line)).argsort(descending=True)
            assert tree.tokens[node - 1] == int(draft.target_ids(ranked)[path[-1]])


def whole(sample: Sample, start: int = 0, end: int | None = None) -> Seen:
    ids = sample.input_ids.tolist()
    hidden = sample.hidden[start:end]
    return Seen(ids[start:end], [*ids[1:], 7][start:end], None, hidden)


@torch.inference_mode()
def after(draft: Eagle, sample: Sample, line: list[int]) -> Tensor:
    """The draft's output after a sample and some guesses, token by token."""
    seen = whole(sample)
    rows = len(seen.ids)
    cache, hidden = DraftCache(rows + len(line)), seen.hidden_RH
    assert hidden is not None
    out: Tensor = draft(torch.tensor(seen.next_ids), hidden, torch.arange(rows), cache)[-1:]
    cache.advance(rows)
    for i, token in enumerate(line):
        out = draft(torch.tensor([token]), out, torch.tensor([rows + i]), cache)
        cache.advance(1)
    return out[0]


@torch.inference_mode()
@pytest.mark.parametrize("shape", [None, Shape(3), Shape(3, 3, 7)], ids=["static", "chain", "tree"])
def test_a_session_remembers_what_one_that_starts_there_knows(shape: Shape | None) -> None:
    """After rounds with refused guesses, and with another slot beside it."""
    draft = random_eagle(Eagle)
    drafter = EagleDrafter(draft, LAYOUT) if shape is None else Eagle2(draft, shape)
    generator, (one, two) = torch.Generator(), SAMPLES
    session = drafter.session(2, 64)
    for slot, sample in enumerate((one, two)):
        session.open(slot, [1], Sampling(), generator)
        session.observe({slot: whole(sample, 0, 4)})
    for start in range(4, 10, 2):
        session.propose({0: 3, 1: 3})
        at = start // 2 + 2  # the other slot goes on more slowly
        session.observe({0: whole(one, start, start + 2), 1: whole(two, at, at + 1)})
    rebuilt = drafter.session(1, 64)
    rebuilt.open(0, [1], Sampling(), generator)
    rebuilt.observe({0: whole(one, 0, 10)})
    assert session.propose({0: 3, 1: 1})[0].tree == rebuilt.propose({0: 3})[0].tree
    session.close(0)  # the other line moves
    rebuilt.close(0)
    rebuilt.open(0, [1], Sampling(), generator)
    rebuilt.observe({0: whole(two, 0, 7)})
    assert session.propose({1: 2})[1].tree == rebuilt.propose({0: 2})[0].tree


def test_names_in_a_table() -> None:
    assert Eagle2(random_eagle(Eagle)).name == "eagle2"
    assert Eagle2(random_eagle(Hass)).name == "hass"
