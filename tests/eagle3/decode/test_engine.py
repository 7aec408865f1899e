"""Greedy equality, counts and stops, with drafts that are right, wrong, or right at second try."""

from __future__ import annotations

import copy

import pytest
import torch

from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.draft import Draft
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.plain import Plain
from eagle3.errors import BadInput
from eagle3.target import Target
from tests.golden import Golden, golden_draft, golden_target, random_target, successor_scores

CHAIN = Shape(depth=3)
TREE = Shape(depth=3, top_k=3, total=7)


@pytest.fixture(scope="module")
def golden() -> Golden:
    return golden_target()


def right(golden: Golden) -> Draft:
    return golden_draft(golden.target, successor_scores(golden.perm))


def wrong(golden: Golden) -> Draft:
    return golden_draft(golden.target, successor_scores(golden.perm, shift=5))


def second_guess(golden: Golden) -> Draft:
    """After an odd token the right successor only comes second."""
    scores = successor_scores(golden.perm)
    scores[1::2] += 1.5 * successor_scores(golden.perm, shift=5)[1::2]
    return golden_draft(golden.target, scores)


def answer(
    target: Target,
    draft: Draft | None,
    shape: Shape | None,
    prompt: list[int],
    length: int,
    stop_ids: set[int] | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Generation:
    """One prompt decoded with a draft, or plainly without one."""
    drafter = Plain() if draft is None else Eagle3(draft, shape or CHAIN)
    request = Request(prompt, length, sampling or Sampling(), frozenset(stop_ids or ()), seed=seed)
    return Engine(target, drafter).generate([request])[0]


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_a_draft_that_is_always_right_is_always_accepted(golden: Golden, shape: Shape) -> None:
    out = answer(golden.target, right(golden), shape, [3, golden.perm[3]], 21)
    assert out.tokens == golden.chain(golden.perm[3], 21)
    assert (out.decoded, out.rounds) == (20, 5)
    assert out.reached == out.accepted == [5, 5, 5]


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_a_draft_that_is_never_right_costs_nothing_but_time(golden: Golden, shape: Shape) -> None:
    out = answer(golden.target, wrong(golden), shape, [3], 12)
    assert out.tokens == golden.chain(3, 12)
    assert out.rounds == out.decoded == 11
    assert out.accepted == [0]
    assert out.reached == [10]  # the last round has room for no draft


def test_a_tree_accepts_a_second_guess_that_a_chain_loses(golden: Golden) -> None:
    chain = answer(golden.target, second_guess(golden), CHAIN, [3], 25)
    tree = answer(golden.target, second_guess(golden), TREE, [3], 25)
    assert chain.tokens == tree.tokens == golden.chain(3, 25)
    assert tree.rounds < chain.rounds
    assert sum(tree.accepted) > sum(chain.accepted) > 0


def test_tokens_outside_the_draft_vocabulary_are_never_accepted(golden: Golden) -> None:
    chain = golden.chain(3, 16)
    kept = torch.tensor(sorted({*range(len(golden.perm))} - {chain[8]}))
    draft = golden_draft(golden.target, successor_scores(golden.perm), kept)
    out = answer(golden.target, draft, CHAIN, [3], 16)
    assert out.tokens == chain
    # prefill: token 0; rounds: 1-4, 5-8 (8 is missing, so it comes from the target), 9-12, 13-15
    assert out.rounds == 4


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("shape", [CHAIN, TREE, Shape(5, 4, 12)])
def test_greedy_output_is_that_of_plain_decoding(shape: Shape, fast: bool) -> None:
    target = random_target()
    scores = torch.randn(48, 48, generator=torch.Generator().manual_seed(1))
    draft = golden_draft(target, scores)
    if fast:
        speed_up(target.model, draft)
    accepted = 0
    for start in range(6):
        plain = answer(target, None, None, [start, 7, start], 40)
        drafted = answer(target, draft, shape, [start, 7, start], 40)
        assert drafted.tokens == plain.tokens
        accepted += sum(drafted.accepted)
    assert accepted > 0


def test_plain_decoding_is_that_of_transformers() -> None:
    target = random_target()
    reference = copy.deepcopy(target.model)
    reference.set_attn_implementation("eager")
    ours = answer(target, None, None, [1, 2, 3], 30).tokens
    ids = torch.tensor([[1, 2, 3]])
    theirs = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False
    )
    assert ours == theirs[0, 3:].tolist()


@pytest.mark.parametrize("length", range(1, 11))
def test_stops_at_the_cap_like_plain_decoding(golden: Golden, length: int) -> None:
    out = answer(golden.target, right(golden), CHAIN, [3], length)
    assert (out.tokens, out.finish) == (golden.chain(3, length), "length")
    assert out.rounds == -(-(length - 1) // 4)


@pytest.mark.parametrize("at", range(8))
def test_stops_at_an_eos_inside_an_accepted_run(golden: Golden, at: int) -> None:
    chain = golden.chain(3, 20)
    drafted = answer(golden.target, right(golden), CHAIN, [3], 20, {chain[at]})
    plain = answer(golden.target, None, None, [3], 20, {chain[at]})
    assert drafted.tokens == plain.tokens == chain[: at + 1]
    assert drafted.finish == plain.finish == "eos"
    assert drafted.decoded == at
    emitted = sum(drafted.accepted) + drafted.rounds
    assert emitted - drafted.decoded in (0, 1)  # a run cut short has no token of its own


def test_the_same_seed_gives_the_same_sample(golden: Golden) -> None:
    sampling = Sampling(temperature=8.0)
    first, again, other = (
        answer(golden.target, right(golden), CHAIN, [3], 12, sampling=sampling, seed=s).tokens
        for s in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("shape", [None, CHAIN, TREE])
def test_the_sampled_distribution_is_the_targets(shape: Shape | None) -> None:
    """250 samples of 4 tokens: each successor's rate is within 4 standard errors of the exact."""
    golden = golden_target(vocab=8, certainty=4.0)
    draft = None if shape is None else second_guess(golden)
    sampling = Sampling(temperature=2.0)
    exact = torch.tensor([2.0] + [0.0] * 7).double().softmax(-1)[0].item()
    hits = torch.zeros(4)
    for seed in range(250):
        out = answer(golden.target, draft, shape, [3], 4, sampling=sampling, seed=seed)
        before = [3, *out.tokens[:-1]]
        hits += torch.tensor(
            [float(golden.perm[a] == b) for a, b in zip(before, out.tokens, strict=True)]
        )
    error = (exact * (1 - exact) / 250) ** 0.5
    assert (hits / 250 - exact).abs().max() < 4 * error


def test_a_draft_of_other_layers_is_refused(golden: Golden) -> None:
    draft = right(golden)
    other = type(golden.target)(golden.target.model, (0, 1, 1))
    with pytest.raises(BadInput, match=r"layers \(0, 1, 2\); the target captures \(0, 1, 1\)"):
        Engine(other, Eagle3(draft))


def test_times_add_up(golden: Golden) -> None:
    out: Generation = answer(golden.target, right(golden), CHAIN, [3], 12)
    t = out.timings
    assert out.prefill_s > 0
    assert min(t.target, t.draft, t.other) > 0
    assert t.target + t.draft + t.other == pytest.approx(out.decode_s)
