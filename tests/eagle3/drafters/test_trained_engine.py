"""Trained methods through the engine: the same answers as plain decoding, in fewer rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from eagle3.bench.prompts import HeldOut
from eagle3.decode.drafter import Drafter
from eagle3.decode.engine import Engine
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.decode.verify import Typical
from eagle3.drafters.eagle import Eagle, EagleDrafter
from eagle3.drafters.eagle2 import Eagle2
from eagle3.drafters.hass import Hass
from eagle3.drafters.heads import HeadDrafter
from eagle3.drafters.hydra import Hydra
from eagle3.drafters.medusa import Medusa
from eagle3.drafters.plain import Plain
from eagle3.errors import BadInput
from eagle3.proof.greedy import prove_prompt
from eagle3.proof.reference import Reference
from eagle3.proof.samples import draw
from eagle3.target import Target
from tests.eagle3.drafters.learned import LAYOUT, VOCAB, new_eagle, new_heads, permuted, trained
from tests.golden import random_target

SHAPE = Shape(3, 3, 7)
PROMPTS = [([3, 9], 17), ([5], 24), ([1, 2, 3, 4, 5], 9), ([40, 7, 7], 21), ([8, 8], 1)]


METHODS: dict[str, tuple[Callable[[Target], torch.nn.Module], Callable[..., Drafter]]] = {
    "medusa": (lambda t: new_heads(Medusa, t), lambda m: HeadDrafter(m, LAYOUT)),
    "hydra": (lambda t: new_heads(Hydra, t), lambda m: HeadDrafter(m, LAYOUT)),
    "eagle": (lambda t: new_eagle(Eagle, t), lambda m: EagleDrafter(m, LAYOUT)),
    "eagle2": (lambda t: new_eagle(Eagle, t), lambda m: Eagle2(m, SHAPE)),
    "hass": (lambda t: new_eagle(Hass, t), lambda m: Eagle2(m, SHAPE)),
}


@cache
def learned(name: str) -> Drafter:
    torch.manual_seed(0)
    module = METHODS[name][0](permuted()[0])
    trained(module, tokens=5_000)  # type: ignore[arg-type]
    return METHODS[name][1](module)


def answers(target: Target, drafter: Drafter, slots: int) -> list[Generation]:
    requests = [Request(prompt, count) for prompt, count in PROMPTS]
    return Engine(target, drafter, slots).generate(requests)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_the_same_answers_in_fewer_rounds(name: str, slots: int) -> None:
    target, _ = permuted()
    plain, found = answers(target, Plain(), slots), answers(target, learned(name), slots)
    assert learned(name).name == name
    assert [g.tokens for g in found] == [g.tokens for g in plain]
    assert sum(g.rounds for g in found) < 0.4 * sum(g.rounds for g in plain)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_guesses_that_are_mostly_wrong_change_nothing(name: str, slots: int) -> None:
    """A target that attends to its whole text, and weights that say anything."""
    target = random_target(VOCAB)
    torch.manual_seed(1)
    module = METHODS[name][0](target)
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.2)
    drafter = METHODS[name][1](module.eval().requires_grad_(False))
    plain, found = answers(target, Plain(), slots), answers(target, drafter, slots)
    assert [g.tokens for g in found] == [g.tokens for g in plain]
    assert sum(sum(g.reached) for g in found) > 0


def test_typical_acceptance_is_lossy_and_cannot_be_proved(tmp_path: Path) -> None:
    target, _ = permuted()
    exact = learned("medusa")
    assert isinstance(exact, HeadDrafter)
    typical = replace(exact, typical=Typical())
    assert (exact.lossless, typical.lossless, typical.name) == (True, False, "medusa_typical")
    greedy = answers(target, typical, 2)
    assert [g.tokens for g in greedy] == [g.tokens for g in answers(target, exact, 2)]
    requests = [Request([3, 9], 24, Sampling(2.5), seed=seed) for seed in range(8)]
    rounds = [
        sum(g.rounds for g in Engine(target, drafter, 4).generate(requests))
        for drafter in (exact, typical)
    ]
    assert rounds[1] < rounds[0]
    target.model.save_pretrained(tmp_path)
    reference = Reference(tmp_path, frozenset())
    with pytest.raises(BadInput, match="medusa_typical is lossy"):
        prove_prompt(Engine(target, typical), reference, HeldOut("p", [3]), 4)
    with pytest.raises(BadInput, match="medusa_typical is lossy"):
        draw(Engine(target, typical), reference, HeldOut("p", [3]), 4, 0)
