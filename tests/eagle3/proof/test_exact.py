"""With a draft, sampled text has the target's own distribution to rounding, whatever the sampling;
and each of the usual faults of acceptance does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eagle3.decode import sequence, verify
from eagle3.decode.drafter import Proposal
from eagle3.decode.sampling import NOTHING, Prefix, Sampling, probabilities
from eagle3.decode.sequence import NO_GUESS
from eagle3.decode.tree import Tree
from eagle3.decode.verify import Typical
from tests.eagle3.proof.exact import (
    DrawnChain,
    Fork,
    Guesser,
    Text,
    TinyTarget,
    alone,
    total_variation,
    with_draft,
)

V = 4
LENGTH = 4
PROMPT = (1, 3)

PENALTIES = Sampling(
    1.0,
    repetition_penalty=1.4,
    frequency_penalty=0.5,
    presence_penalty=-0.3,
    logit_bias={0: 1.5, 2: -1.0},
)
SAMPLINGS = {
    "temperature 1": Sampling(1.0),
    "cold": Sampling(0.5),
    "top-k": Sampling(0.8, top_k=2),
    "top-p": Sampling(1.2, top_p=0.7),
    "min-p": Sampling(1.5, min_p=0.3),
    "penalties": PENALTIES,
    "all": Sampling(0.7, 3, 0.9, 0.05, 1.3, 0.4, 0.2, {1: 0.7}),
}


def random_target(seed: int) -> TinyTarget:
    """Logits that depend on every token before."""

    @cache
    def logits(text: Text) -> Tensor:
        mixed = seed
        for token in text:
            mixed = (mixed * 31 + token + 1) % (2**31 - 1)
        generator = torch.Generator().manual_seed(mixed)
        return 1.5 * torch.randn(V, generator=generator, dtype=torch.float64)

    return logits


def definitions(sampling: Sampling) -> Callable[[Tensor, Text, Text], Tensor]:
    """Sampling by transformers' processors; bias and the two penalties that it lacks by hand."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.min_p:
        steps.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p:
        steps.append(TopPLogitsWarper(sampling.top_p))

    def distribution(logits_V: Tensor, prompt: Text, output: Text) -> Tensor:
        x = logits_V.clone()[None]
        for token, bias in sampling.logit_bias.items():
            x[0, token] += bias
        ids = torch.tensor([[*prompt, *output]])
        if sampling.repetition_penalty != 1:
            x = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, x)
        for token in set(output):
            x[0, token] -= sampling.frequency_penalty * output.count(token)
            x[0, token] -= sampling.presence_penalty
        warped_V: Tensor = steps(ids, x)[0]
        return warped_V.softmax(-1)

    return distribution


def trees(text: Text, room: int) -> Tree:
    """A tree of width two at the root, with a token that comes again on its own path."""
    a, b = (text[-1] + 1) % V, (sum(text) + 3) % V
    if a == b:
        b = (b + 1) % V
    tokens, parents, depths = [a, b, a, (a + 2) % V, b, a], [0, 0, 1, 1, 2, 3], [1, 1, 2, 2, 2, 3]
    kept = sum(depth <= room for depth in depths)
    return Tree(tokens[:kept], parents[:kept])


def chains(text: Text, room: int) -> Tree:
    tokens = [(text[-1] + step) % V for step in range(min(3, room))]
    return Tree(tokens, list(range(len(tokens))))


def drawn(seed: int, depth: int = 3) -> DrawnChain:
    draft = random_target(seed + 1000)
    return DrawnChain(lambda text: draft(text).softmax(-1), depth)


GUESSERS = {"tree": Guesser(trees), "chain": Guesser(chains), "drawn chain": drawn(5)}


def distance(sampling: Sampling, guesser: Guesser, seed: int = 0) -> float:
    target = random_target(seed)
    own = alone(target, definitions(sampling), PROMPT, LENGTH)
    assert sum(own.values()) == pytest.approx(1)
    return total_variation(with_draft(target, guesser, PROMPT, sampling, LENGTH), own)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("guesser", GUESSERS.values(), ids=GUESSERS)
def test_a_draft_leaves_the_distribution_as_it_is(guesser: Guesser, sampling: Sampling) -> None:
    assert distance(sampling, guesser) < 1e-12


@pytest.mark.parametrize("seed", range(1, 6))
def test_for_other_targets_and_drafts_too(seed: int) -> None:
    for guesser in (Guesser(trees), drawn(seed)):
        assert distance(SAMPLINGS["all"], guesser, seed) < 1e-12


def test_a_draft_that_is_the_target_is_always_right() -> None:
    target = random_target(0)
    same = DrawnChain(lambda text: target(text).softmax(-1), 3)
    assert distance(Sampling(1.0), same) < 1e-12


def plain_ratio(
    tree: Tree, node: int, p_V: Tensor, q_NV: Tensor, generator: torch.Generator
) -> int | None:
    """Acceptance with q where p belongs."""
    if node == len(tree.tokens):
        return None
    if verify._uniform(generator) < float(q_NV[node][tree.tokens[node]]):
        return node + 1
    return None


def no_residual(
    tree: Tree, node: int, p_V: Tensor, q_NV: Tensor, generator: torch.Generator
) -> int | None:
    """After a refusal, a token from p in place of what p has over q."""
    if node == len(tree.tokens):
        return None
    token = tree.tokens[node]
    ratio = verify._uniform(generator) * float(q_NV[node][token])
    return node + 1 if ratio < float(p_V[token]) else None


def not_struck_out(
    tree: Tree, children: list[int], p_V: Tensor, generator: torch.Generator
) -> int | None:
    """A refused child may be drawn all the same."""
    for child in children:
        if verify._uniform(generator) < float(p_V[tree.tokens[child - 1]]):
            return child
    return None


def not_renormalised(
    tree: Tree, children: list[int], p_V: Tensor, generator: torch.Generator
) -> int | None:
    for child in children:
        token = tree.tokens[child - 1]
        if verify._uniform(generator) < float(p_V[token]):
            return child
        p_V[token] = 0
    return None


@pytest.mark.parametrize(
    ("name", "fault", "guesser"),
    [
        ("_try_drawn", plain_ratio, "drawn chain"),
        ("_try_drawn", no_residual, "drawn chain"),
        ("_try_children", not_struck_out, "tree"),
        ("_try_children", not_struck_out, "chain"),
        ("_try_children", not_renormalised, "tree"),
    ],
)
def test_a_fault_of_acceptance_shows(
    name: str, fault: Callable[..., int | None], guesser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, name, fault)
    assert distance(Sampling(1.0), GUESSERS[guesser]) > 1e-3


def test_drawn_guesses_may_be_taken_for_fixed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a guess, however it came about, acceptance with p leaves p; only fewer are accepted."""
    accept = verify.accept_sampled
    monkeypatch.setattr(sequence, "accept_sampled", lambda tree, p, g, _: accept(tree, p, g))
    assert distance(Sampling(1.0), GUESSERS["drawn chain"]) < 1e-12


class Typically(Guesser):
    """Guesses that are accepted as Medusa's paper does."""

    def propose(self, text: Text, room: int, fork: Fork) -> Proposal:
        return replace(super().propose(text, room, fork), typical=Typical())


def test_typical_acceptance_is_another_distribution() -> None:
    assert distance(Sampling(1.0), Typically(trees)) > 1e-2


def choosing(
    distribution: Callable[[Tensor, Sampling, Prefix, Tree], Tensor],
) -> Callable[..., tuple[list[int], int]]:
    """The engine's choice, with another distribution."""

    def choose(
        self: sequence.Sequence, logits_NV: Tensor, _: list[int], proposal: Proposal = NO_GUESS
    ) -> tuple[list[int], int]:
        p_NV = distribution(logits_NV, self.request.sampling, self._prefix, proposal.tree)
        return verify.accept_sampled(proposal.tree, p_NV, self.generator, proposal.q_NV)

    return choose


@pytest.mark.parametrize("guesser", GUESSERS.values(), ids=GUESSERS)
@pytest.mark.parametrize(
    "forgets",
    [
        pytest.param(lambda x, s, prefix, tree: probabilities(x, s, NOTHING, tree), id="prefix"),
        pytest.param(lambda x, s, prefix, tree: probabilities(x, s, prefix), id="path"),
        pytest.param(
            lambda x, s, prefix, tree: probabilities(x, Sampling(s.temperature)), id="penalties"
        ),
    ],
)
def test_penalties_that_forget_show(
    forgets: Callable[..., Tensor], guesser: Guesser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence.Sequence, "choose", choosing(forgets))
    assert distance(PENALTIES, guesser) > 1e-3


@pytest.mark.parametrize("name", ["cold", "top-k", "top-p", "min-p"])
def test_a_step_that_is_left_out_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SAMPLINGS[name]
    done = Sampling(1.0 if name == "cold" else asked.temperature)
    skipping = choosing(lambda x, _, prefix, tree: probabilities(x, done))
    monkeypatch.setattr(sequence.Sequence, "choose", skipping)
    assert distance(asked, GUESSERS["tree"]) > 1e-3
