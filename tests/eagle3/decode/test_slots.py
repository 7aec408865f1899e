"""Sequences that share slots: each gets what it gets alone, at once, to its own end."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from eagle3.decode.drafter import Drafter, Seen
from eagle3.decode.engine import Engine
from eagle3.decode.request import Emission, Generation, Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.draft import Draft, DraftConfig
from eagle3.drafters import eagle3
from eagle3.drafters.eagle3 import Eagle3, Eagle3Session
from eagle3.drafters.plain import Plain
from eagle3.errors import BadInput
from eagle3.target import Target
from tests.golden import (
    CAPTURE,
    Golden,
    golden_draft,
    golden_target,
    random_target,
    successor_scores,
)

CHAIN, TREE = Shape(depth=3), Shape(depth=3, top_k=3, total=7)
LENGTHS = [5, 1, 17, 2, 30, 9, 11]


def random_draft(target: Target) -> Draft:
    """Every weight counts, features and attention too."""
    torch.manual_seed(4)
    draft = Draft(DraftConfig.for_target(target.config, CAPTURE, 12), target.embed.weight.detach())
    draft.set_vocab(torch.arange(0, 48, 4))
    return draft.eval().requires_grad_(False)


def prompts(vocab: int = 48) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in LENGTHS]


def drafters(target: Target) -> dict[str, Drafter]:
    scores = torch.randn(48, 48, generator=torch.Generator().manual_seed(1))
    fixed, real = golden_draft(target, scores), random_draft(target)
    return {
        "plain": Plain(),
        "fixed chain": Eagle3(fixed, CHAIN),
        "fixed tree": Eagle3(fixed, TREE),
        "real chain": Eagle3(real, CHAIN),
        "real tree": Eagle3(real, TREE),
    }


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target()


@pytest.fixture(scope="module")
def golden() -> Golden:
    return golden_target()


def facts(out: Generation) -> dict[str, Any]:
    """All but times."""
    keys = ("tokens", "finish", "rounds", "reached", "accepted")
    return {key: getattr(out, key) for key in keys}


@pytest.mark.parametrize("name", ["plain", "fixed chain", "fixed tree", "real chain", "real tree"])
def test_a_batch_gives_each_prompt_what_it_gets_alone(target: Target, name: str) -> None:
    drafter = drafters(target)[name]
    requests = [Request(p, 8 + 3 * i) for i, p in enumerate(prompts())]
    alone = [facts(Engine(target, drafter).generate([r])[0]) for r in requests]
    plain = [out.tokens for out in Engine(target, Plain()).generate(requests)]
    assert [out["tokens"] for out in alone] == plain
    for slots in (3, 7):
        assert [facts(out) for out in Engine(target, drafter, slots).generate(requests)] == alone


@pytest.mark.parametrize("name", ["plain", "fixed chain", "fixed tree"])
def test_what_is_sampled_does_not_depend_on_what_is_decoded_beside(
    target: Target, name: str
) -> None:
    drafter = drafters(target)[name]
    sampling = Sampling(1.5, top_p=0.95, repetition_penalty=1.2)
    requests = [Request(p, 14, sampling, seed=7 * i) for i, p in enumerate(prompts())]
    alone = [facts(Engine(target, drafter).generate([r])[0]) for r in requests]
    assert [facts(out) for out in Engine(target, drafter, 3).generate(requests)] == alone
    back = Engine(target, drafter, 4).generate(requests[::-1])
    assert [facts(out) for out in back[::-1]] == alone


def test_greedy_with_penalties_is_that_of_transformers(target: Target) -> None:
    requests = [Request(p, 16, Sampling(repetition_penalty=1.3)) for p in prompts()]
    stock = copy.deepcopy(target.model)
    stock.set_attn_implementation("eager")
    theirs = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        out = stock.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=16,
            do_sample=False,
            repetition_penalty=1.3,
        )
        theirs.append(out[0, len(prompt) :].tolist())
    for name in ("plain", "fixed chain", "fixed tree"):
        outs = Engine(target, drafters(target)[name], 3).generate(requests)
        assert [out.tokens for out in outs] == theirs


def test_a_finished_sequence_gives_its_slot_to_the_next_at_once(golden: Golden) -> None:
    """Answers of 4, 2, 3 and 1 tokens in two slots, one token a round."""
    engine = Engine(golden.target, Plain(), 2)
    requests = [Request([3 + i], n) for i, n in enumerate((4, 2, 3, 1))]
    order = [(e.request, e.done is not None) for e in engine.stream(requests)]
    assert order == [
        *[(0, False), (1, False)],
        *[(0, False), (1, True), (2, False)],
        *[(0, False), (2, False)],
        *[(0, True), (2, True), (3, True)],
    ]


def test_requests_are_taken_up_only_when_a_slot_is_free(golden: Golden) -> None:
    taken: list[int] = []

    def endless() -> Any:
        while True:
            taken.append(len(taken))
            yield Request([3], 3)

    stream = Engine(golden.target, Plain(), 2).stream(endless())
    for _ in range(2):
        next(stream)
    assert taken == [0, 1]


@pytest.mark.parametrize("shape", [CHAIN, TREE])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_prompt_near_the_context_limit_is_decoded_to_the_limit(
    golden: Golden, shape: Shape, slots: int
) -> None:
    context = golden.target.context
    drafter = Eagle3(golden_draft(golden.target, successor_scores(golden.perm)), shape)
    requests = [Request([3] * (context - room), 40) for room in (9, 1, 2, 6)]
    for out, room in zip(
        Engine(golden.target, drafter, slots).generate(requests), (9, 1, 2, 6), strict=True
    ):
        assert (out.tokens, out.finish) == (golden.chain(3, room), "length")


def test_a_draft_reads_a_long_prompt_in_parts(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.tensor(prompts()[4])
    _, features = target.forward(ids[None], target.new_cache(len(ids)), capture=True)
    assert features is not None
    seen = Seen(ids[:-1].tolist(), ids[1:].tolist(), features[0, :-1], None)
    drafter = Eagle3(random_draft(target), TREE)
    read = []
    for rows in (64, 4):
        monkeypatch.setattr(eagle3, "ROWS", rows)
        session = Eagle3Session(drafter, 2, 64)
        for slot in (1, 0):
            session.cache.open(slot)
            session.observe({slot: seen})
        assert session.cache.lengths == [29, 29]
        kept = session.cache.layers[0].k_BNMD
        assert kept is not None
        read.append((session.root_out_H[0], kept[1, :, :29]))
    for parts, whole in zip(*read, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_decoded_is_refused(golden: Golden) -> None:
    engine = Engine(golden.target, Plain())
    context = golden.target.context
    with pytest.raises(BadInput, match=f"has {context} tokens; .* may have {context}: shorten"):
        engine.generate([Request([3] * context, 1)])
    with pytest.raises(BadInput, match="empty"):
        Request([], 1)
    with pytest.raises(BadInput, match="max_new_tokens 0"):
        Request([3], 0)
    with pytest.raises(BadInput, match="a stop string is empty"):
        Request([3], 4, stop_strings=("x", ""))
    for seed in (-1, 2**64):
        with pytest.raises(BadInput, match=f"seed {seed}: expected 0 to"):
            Request([3], 4, seed=seed)
    with pytest.raises(BadInput, match="tokenizer"):
        engine.generate([Request([3], 4, stop_strings=("x",))])
    with pytest.raises(BadInput, match="slots 0"):
        Engine(golden.target, Plain(), 0)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_request_that_does_not_fit_the_target_is_refused_alone(
    golden: Golden, slots: int
) -> None:
    vocab, context = len(golden.perm), golden.target.context
    good = Request([3], 6)
    bad = {
        1: (Request([3] * context, 1), f"the prompt has {context} tokens"),
        2: (Request([vocab], 1), f"prompt of token {vocab}: expected an id from 0 to {vocab - 1}"),
        4: (Request([3], 1, Sampling(logit_bias={vocab: 1.0})), f"logit_bias of token {vocab}: "),
        5: (Request([3], 1, stop_strings=("x",)), "stop strings need the target's tokenizer"),
    }
    requests = [bad[n][0] if n in bad else good for n in range(7)]
    emissions = list(Engine(golden.target, Plain(), slots).stream(requests))
    done = {e.request: e.done.tokens for e in emissions if e.done is not None}
    assert done == dict.fromkeys((0, 3, 6), golden.chain(3, 6))
    for number, (_, why) in bad.items():
        (refusal,) = (e.refused for e in emissions if e.request == number)
        assert str(refusal).startswith(why)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_stream_gives_the_tokens_of_each_answer_once(golden: Golden, slots: int) -> None:
    drafter = Eagle3(golden_draft(golden.target, successor_scores(golden.perm)), CHAIN)
    requests = [
        Request([3 + i], 18, stop_ids=frozenset(golden.chain(3 + i, 9 + i)[-1:])) for i in range(5)
    ]
    emissions: dict[int, list[Emission]] = {}
    for emission in Engine(golden.target, drafter, slots).stream(requests):
        emissions.setdefault(emission.request, []).append(emission)
    for number, parts in emissions.items():
        assert [part.done is None for part in parts] == [True] * (len(parts) - 1) + [False]
        done = parts[-1].done
        assert done is not None
        assert [t for part in parts for t in part.tokens] == done.tokens
        assert done.tokens == golden.chain(3 + number, 9 + number)
        assert done.finish == "eos"
        assert len(parts) == 1 + done.rounds
        assert len(done.stamps) == len(done.tokens)
        assert done.stamps == sorted(done.stamps)
        assert len(set(done.stamps)) == len(parts)
        assert 0 < done.prefill_s
        assert done.decode_s > 0


class Letters:
    """A tokenizer whose tokens are one letter each."""

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(chr(97 + i) for i in ids)


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("slots", [1, 2])
def test_a_stop_string_is_found_over_the_end_of_a_round(
    golden: Golden, at: int, slots: int
) -> None:
    """Rounds emit 4 tokens; the stop string is three letters, from each place in a round."""
    drafter = Eagle3(golden_draft(golden.target, successor_scores(golden.perm)), CHAIN)
    chain = golden.chain(3, 20)
    text = Letters().decode(chain)
    request = Request([3], 20, stop_strings=("never", text[at : at + 3]))
    outs = []
    for method in (Plain(), drafter):
        shown: dict[int, str] = {0: "", 1: ""}
        engine = Engine(golden.target, method, slots, Letters())
        for emission in engine.stream([request] * 2):
            shown[emission.request] += emission.text
            assert text[:at].startswith(shown[emission.request])
            if emission.done is not None:
                outs.append(emission.done)
        assert set(shown.values()) == {text[:at]}
    for out in outs:
        assert (out.text, out.finish, out.tokens) == (text[:at], "stop", chain[: at + 3])


def two_ahead(golden: Golden) -> Draft:
    """Names, from a feature alone, what comes two tokens later; its output is that feature."""
    draft = golden_draft(golden.target, successor_scores(golden.perm, shift=1))
    draft.midlayer.self_attn.o_proj.weight.zero_()
    return draft


class Stale(Eagle3Session):
    """Goes on from what the draft made of its own guesses."""

    def observe(self, seen: Mapping[int, Seen]) -> None:
        stale = {}
        for slot, rows in seen.items():
            features = rows.features_R3H
            if slot in self.root_out_H:  # this draft's outputs are the features it was fed
                features = self.root_out_H[slot].repeat(len(rows.ids), 3)
            stale[slot] = dataclasses.replace(rows, features_R3H=features)
        super().observe(stale)


def test_without_the_true_features_fewer_guesses_are_accepted(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(golden.target, Eagle3(two_ahead(golden), Shape(1)), 2)
    requests = [Request([3], 41), Request([4, 5], 41)]
    fed = engine.generate(requests)
    assert [out.rounds for out in fed] == [20, 20]
    monkeypatch.setattr(Eagle3, "session", lambda self, *sizes: Stale(self, *sizes))
    unfed = engine.generate(requests)
    assert [out.tokens for out in unfed] == [out.tokens for out in fed]
    assert all(out.rounds > 36 for out in unfed)


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_the_draft_remembers_true_features_alone(
    golden: Golden, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some rounds its K and V are those of a draft that was told all of the text at once."""
    target, drafter = golden.target, Eagle3(two_ahead(golden), shape)
    sessions: list[Eagle3Session] = []

    def session(self: Eagle3, *sizes: int) -> Eagle3Session:
        sessions.append(Eagle3Session(self, *sizes))
        return sessions[-1]

    monkeypatch.setattr(Eagle3, "session", session)
    stream = Engine(target, drafter, 3).stream(Request(p, 24) for p in prompts()[:3])
    texts = {number: list(p) for number, p in enumerate(prompts()[:3])}
    for _ in range(3 + 3 * 6):  # the prompts, and six rounds of two tokens
        emission = next(stream)
        texts[emission.request] += emission.tokens
    assert all(len(texts[n]) >= len(p) + 13 for n, p in enumerate(prompts()[:3]))
    cache = sessions[0].cache
    for line, slot in enumerate(cache.slots):
        ids = torch.tensor(texts[slot])
        rows = len(ids) - 1
        assert cache.lengths[line] == rows
        _, features = target.forward(ids[None], target.new_cache(len(ids)), capture=True)
        assert features is not None
        told = Eagle3Session(drafter, 1, 64)
        told.cache.open(0)
        told.observe({0: Seen(ids[:-1].tolist(), ids[1:].tolist(), features[0, :-1], None)})
        ours, theirs = cache.layers[0], told.cache.layers[0]
        for a, b in ((ours.k_BNMD, theirs.k_BNMD), (ours.v_BNMD, theirs.v_BNMD)):
            assert a is not None
            assert b is not None
            torch.testing.assert_close(a[line, :, :rows], b[0, :, :rows], rtol=1e-4, atol=1e-4)
