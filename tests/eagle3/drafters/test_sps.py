"""Chains of the small model against its own forward over the whole text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.engine import Engine
from eagle3.decode.request import Request
from eagle3.decode.sampling import Prefix, Sampling, probabilities
from eagle3.drafters.plain import Plain
from eagle3.drafters.sps import Speculative, SpeculativeSession
from eagle3.target import Target
from tests.eagle3.drafters.loop import Say, advance, decode, plain, start
from tests.golden import random_target

VOCAB = 48


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(VOCAB, seed=0)


@pytest.fixture(scope="module")
def small() -> Target:
    return random_target(VOCAB, seed=1)


def logits(model: Target, text: list[int]) -> Tensor:
    """What follows a text, [V], with nothing remembered."""
    hidden, _ = model.forward(torch.tensor([text]), model.new_cache(len(text)))
    return model.logits(hidden[0, -1])


def greedy(model: Target) -> Say:
    return lambda text: int(logits(model, text).argmax())


def test_a_model_that_is_the_target_is_always_right(target: Target) -> None:
    prompts = [[1, 2, 3], [9], [4, 4, 7, 30, 2, 8]]
    for out in decode(Speculative(target, VOCAB, 3), greedy(target), prompts, 22):
        assert out.tokens == plain(greedy(target), out.prompt, 22)
        assert out.rounds == 6  # 21 after the prefill: five rounds of 4, and the last of 1


def test_every_chain_is_the_small_models_own_whatever_happened_before(
    target: Target, small: Target
) -> None:
    """A target that often agrees with the small model, so that chains stand to every length."""

    def say(text: list[int]) -> int:
        return greedy(small)(text) if sum(text) % 5 else greedy(target)(text)

    drafter = Speculative(small, VOCAB, 4)
    out = decode(drafter, say, [[1, 2, 3], [9], [4, 4, 7, 30, 2, 8]], 30)
    lengths = set()
    for one in out:
        assert one.tokens == plain(say, one.prompt, 30)
        emitted = 1
        for proposal in one.proposals:
            chain = proposal.tree.tokens
            text = [*one.prompt, *one.tokens[:emitted]]
            assert chain == plain(greedy(small), text, len(chain))
            assert proposal.q_NV is None
            matched = [a == b for a, b in zip(chain, one.tokens[emitted:], strict=False)]
            accepted = [*matched, False].index(False)
            lengths.add(accepted)
            emitted += accepted + 1
        assert emitted >= 30
    assert lengths == {0, 1, 2, 3, 4}


def test_the_cache_after_many_rounds_is_that_of_the_text_read_at_once(
    target: Target, small: Target
) -> None:
    drafter = Speculative(small, VOCAB, 4)
    session, prompts = drafter.session(2, 64), [[1, 2], [5]]
    out = [start(session, greedy(target), slot, prompt) for slot, prompt in enumerate(prompts)]
    going = dict(enumerate(out))
    for _ in range(10):
        advance(drafter, session, greedy(target), going, 60)
    for slot, one in enumerate(out):
        fresh = small.new_cache(64)
        small.forward(torch.tensor([one.text]), fresh)
        line, rows = session.cache.slots.index(slot), len(one.text)
        assert session.cache.lengths[line] == rows
        for ours, theirs in zip(session.cache.layers, fresh.layers, strict=True):
            assert ours.k_BNMD is not None
            assert theirs.k_BNMD is not None
            torch.testing.assert_close(ours.k_BNMD[line, :, :rows], theirs.k_BNMD[0, :, :rows])


def opened(
    session: SpeculativeSession, slot: int, prompt: list[int], first: int, sampling: Sampling
) -> None:
    session.open(slot, prompt, sampling, torch.Generator().manual_seed(7))
    session.observe({slot: Seen(prompt, [*prompt[1:], first], None, None)})


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_k=9, top_p=0.8),
        Sampling(temperature=1.3, repetition_penalty=1.5, presence_penalty=0.5),
    ],
)
def test_a_drawn_chain_comes_with_what_it_was_drawn_from(small: Target, sampling: Sampling) -> None:
    session = Speculative(small, VOCAB, 4).session(2, 64)
    prompt, output = [1, 2, 3], [11, 12]
    opened(session, 0, [9, 9], 4, Sampling(temperature=2.0))
    opened(session, 1, prompt, output[0], sampling)
    session.observe({1: Seen([11], [12], None, None, [12])})
    proposal = session.propose({0: 9, 1: 3})[1]
    chain, q_NV = proposal.tree.tokens, proposal.q_NV
    assert q_NV is not None
    assert (len(chain), q_NV.shape, q_NV.dtype) == (3, (3, VOCAB), torch.float64)
    for n, q_V in enumerate(q_NV):
        before = [*output, *chain[:n]]
        prefix = Prefix(prompt)
        prefix.extend(before)
        expected = probabilities(logits(small, [*prompt, *before])[None], sampling, prefix)[0]
        torch.testing.assert_close(q_V, expected, rtol=1e-4, atol=1e-6)
        assert q_V[chain[n]] > 0


def test_a_long_prompt_is_read_in_parts(small: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, forward = list(range(11)), small.forward
    logits_V, read = [], []

    def watched(ids_BL: Tensor, *rest: Any, **named: Any) -> Any:
        read.append(ids_BL.shape[1])
        return forward(ids_BL, *rest, **named)

    monkeypatch.setattr(small, "forward", watched)
    for at_once in (99, 4):
        monkeypatch.setattr(small, "rows_at_once", lambda batch, longest, most=at_once: most)
        session = Speculative(small, VOCAB, 3).session(2, 64)
        opened(session, 1, [9, 9], 4, Sampling())
        opened(session, 0, prompt, 30, Sampling())
        assert session.cache.lengths == [3, 12]
        logits_V.append(session.texts[0].logits_V)
    assert read == [3, 12, 3, 4, 4, 4]
    assert logits_V[0] is not None
    assert logits_V[1] is not None
    torch.testing.assert_close(logits_V[1], logits_V[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits_V[1], logits(small, [*prompt, 30]), rtol=1e-4, atol=1e-5)


def test_drawn_tokens_follow_their_distribution(small: Target) -> None:
    """1,500 draws of the first token: total variation from q below 0.12 (expected: about 0.06)."""
    session = Speculative(small, VOCAB, 1).session(1, 8)
    opened(session, 0, [1, 2], 3, Sampling(temperature=1.0))
    found = [session.propose({0: 1})[0] for _ in range(1500)]
    counts = torch.bincount(torch.tensor([p.tree.tokens[0] for p in found]), minlength=VOCAB)
    q_NV = found[0].q_NV
    assert q_NV is not None
    assert float((counts / 1500 - q_NV[0]).abs().sum()) / 2 < 0.12


def test_a_proposal_that_nobody_looked_at_leaves_nothing_behind(small: Target) -> None:
    session = Speculative(small, VOCAB, 4).session(1, 64)
    opened(session, 0, [1, 2], 3, Sampling())
    first = session.propose({0: 4})[0].tree
    assert session.propose({0: 4})[0].tree == first
    assert session.propose({0: 2})[0].tree.tokens == first.tokens[:2]


def test_slots_do_not_mix_and_are_used_again(target: Target, small: Target) -> None:
    drafter = Speculative(small, VOCAB, 3)
    prompts = [[1, 2, 3], [9], [4, 4, 7, 30]]
    together = decode(drafter, greedy(target), prompts, 16)
    session = drafter.session(1, 64)
    for expected in together:
        going = {0: start(session, greedy(target), 0, expected.prompt)}
        one = going[0]
        while going:
            advance(drafter, session, greedy(target), going, 16)
        assert one.tokens == expected.tokens
        assert trees(one.proposals) == trees(expected.proposals)
    assert session.texts == {}


def trees(proposals: list[Proposal]) -> list[list[int]]:
    return [proposal.tree.tokens for proposal in proposals]


def test_rows_of_unused_ids_are_cut_or_filled_up(small: Target) -> None:
    for vocab in (VOCAB - 8, VOCAB + 8):
        session = Speculative(small, vocab, 2).session(1, 64)
        opened(session, 0, [1, 2], 3, Sampling(temperature=1.0))
        q_NV = session.propose({0: 2})[0].q_NV
        assert q_NV is not None
        assert q_NV.shape == (2, vocab)
        assert float(q_NV[:, VOCAB:].sum()) == 0
        torch.testing.assert_close(q_NV.sum(-1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=2.0)])
def test_a_small_model_of_fewer_ids_than_the_target(target: Target, sampling: Sampling) -> None:
    """Prompt and answer hold ids that it does not have; it guesses on."""
    fewer = random_target(VOCAB - 8, seed=1)
    requests = [Request([VOCAB - 1, n, VOCAB - 8], 24, sampling, seed=n) for n in range(4)]
    outs = Engine(target, Speculative(fewer, VOCAB, 3), 2).generate(requests)
    assert max(max(out.tokens) for out in outs) >= VOCAB - 8
    assert sum(sum(out.reached) for out in outs) > 0
    if sampling.is_greedy:
        plain = Engine(target, Plain()).generate(requests)
        assert [out.tokens for out in outs] == [out.tokens for out in plain]


def test_a_length_out_of_range_is_refused(small: Target) -> None:
    with pytest.raises(ValueError, match="length 0: expected a draft of 1 token or more"):
        Speculative(small, VOCAB, 0)
