"""Methods that need no training, and a small model, through the engine: alone and together."""

from __future__ import annotations

import pytest
import torch

from eagle3.decode.drafter import Drafter
from eagle3.decode.engine import Engine
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Sampling
from eagle3.drafters.lookahead import Lookahead
from eagle3.drafters.plain import Plain
from eagle3.drafters.pld import PromptLookup
from eagle3.drafters.sps import Speculative
from eagle3.target import Target
from tests.golden import golden_target, random_target

VOCAB = 48
LENGTHS = (90, 31, 60, 7, 80)


def drafters(small: Target) -> list[Drafter]:
    return [
        PromptLookup(),
        Lookahead(window=5, ngram=4, guesses=4),
        Lookahead(window=3, ngram=3, guesses=2, from_text=True),
        Speculative(small, small.vocab_size, 3),
    ]


def tau(outs: list[Generation]) -> float:
    return sum(out.decoded for out in outs) / sum(out.rounds for out in outs)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("which", range(4))
def test_greedy_answers_are_those_of_plain_decoding(which: int, slots: int) -> None:
    """The target's answers run into loops after a while, which is what these methods live from."""
    target = random_target(VOCAB)
    drafter = drafters(random_target(VOCAB))[which]
    prompts = [[1, 7, 1], [2], [9, 9, 30, 4], [5, 6], [40, 41, 42, 40, 41]]
    requests = [Request(p, n) for p, n in zip(prompts, LENGTHS, strict=True)]
    plain = Engine(target, Plain()).generate(requests)
    drafted = Engine(target, drafter, slots).generate(requests)
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    assert tau(drafted) > 1.5


@pytest.mark.parametrize("which", range(4))
def test_a_text_that_repeats_is_read_in_strides(which: int) -> None:
    """A counting target that has the whole cycle in its prompt."""
    golden = golden_target(VOCAB)
    drafter = drafters(golden.target)[which]
    prompt = [3, *golden.chain(3, VOCAB + 2)]
    (out,) = Engine(golden.target, drafter).generate([Request(prompt, 100)])
    assert out.tokens == golden.chain(prompt[-1], 100)
    assert tau([out]) > 2


@pytest.mark.parametrize("which", range(4))
def test_the_sampled_distribution_is_the_targets(which: int) -> None:
    """250 samples of 6 tokens: each successor's rate is within 4 standard errors of the exact."""
    golden = golden_target(vocab=8, certainty=4.0)
    drafter = drafters(random_target(8))[which]
    exact = float(torch.tensor([2.0] + [0.0] * 7).double().softmax(-1)[0])
    prompt = [3, *golden.chain(3, 9)]
    sampling = Sampling(temperature=2.0)
    requests = [Request(prompt, 6, sampling, seed=seed) for seed in range(250)]
    outs = Engine(golden.target, drafter, 8).generate(requests)
    hits = torch.zeros(6)
    for out in outs:
        before = [prompt[-1], *out.tokens[:-1]]
        pairs = zip(before, out.tokens, strict=True)
        hits += torch.tensor([float(golden.perm[a] == b) for a, b in pairs])
    error = (exact * (1 - exact) / 250) ** 0.5
    assert float((hits / 250 - exact).abs().max()) < 4 * error
    assert sum(sum(out.accepted) for out in outs) > 0
