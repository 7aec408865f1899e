"""Every family of targets, 208 prompts of 64 tokens: many slots and one, chains and trees, real
drafts and golden guesses, each answer token for token that of transformers' `generate`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from eagle3.decode.drafter import Drafter, Proposal, Seen
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape, Tree
from eagle3.draft import Draft, DraftConfig
from eagle3.drafters.eagle3 import Eagle3
from eagle3.target import Target
from tests.families import DECODED, VOCAB, Family, build

pytestmark = pytest.mark.slow

LENGTHS = (3, 17, 30, 50)
EACH, NEW = 4, 64
"""Prompts of each length, and tokens of each answer."""
NEAR = 1e-5
"""Logits in float64 that are no further apart are a tie, which rounding may decide."""


@dataclass(frozen=True)
class Golden:
    """Guesses that follow the answers, but for a wrong one now and then; in trees too.

    A trunk of right tokens goes wrong after `right` of them; each has a wrong twin, put first in
    every other place, and a wrong child below the twin.
    """

    answers: Mapping[tuple[int, ...], list[int]]
    branches: bool

    name = "golden"
    capture_layers = None
    reads_hidden = False
    lossless = True
    most_nodes = 16

    def session(self, slots: int, capacity: int) -> GoldenSession:
        return GoldenSession(self)


class GoldenSession:
    def __init__(self, drafter: Golden) -> None:
        self.drafter = drafter
        self.answers: dict[int, list[int]] = {}
        self.given: dict[int, int] = {}

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        self.answers[slot], self.given[slot] = self.drafter.answers[tuple(prompt_ids)], 0

    def observe(self, seen: Mapping[int, Seen]) -> None:
        for slot, rows in seen.items():
            self.given[slot] += len(rows.next_ids) if self.given[slot] else 1

    def close(self, slot: int) -> None:
        self.answers.pop(slot, None)

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        return {slot: Proposal(self._tree(slot, depth)) for slot, depth in room.items()}

    def _tree(self, slot: int, depth: int) -> Tree:
        given = self.given[slot]
        ahead = self.answers[slot][given : given + min(depth, 5)]
        right = given % 5  # of 5 guesses; the one after is wrong
        tokens: list[int] = []
        parents: list[int] = []
        trunk = 0
        for n, token in enumerate(ahead):
            wrong = (token + 1 + n) % VOCAB
            guesses = [token if n < right else wrong]
            if self.drafter.branches:
                guesses = [wrong, token] if (given + n) % 2 else [token, wrong]
            first = len(tokens) + 1
            tokens += guesses
            parents += [trunk] * len(guesses)
            trunk = first + guesses.index(token) if token in guesses else first
            if self.drafter.branches and n + 1 < len(ahead):
                tokens.append(ahead[n + 1])
                parents.append(first + guesses.index(wrong))
        return Tree(tokens, parents)


@dataclass
class Built:
    target: Target
    stock: Any
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="module", params=DECODED, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    family: Family = request.param
    folder: Path = build(family, tmp_path_factory.mktemp("family"))
    target = Target.load(folder)
    speed_up(target.model)
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(5)
    prompts, answers = [], []
    for length in LENGTHS:  # those of one length go through `generate` together, unpadded
        ids_BP = torch.randint(1, VOCAB, (EACH, length), generator=generator)
        prompts += ids_BP.tolist()
        answers += generate(stock, ids_BP)
    order = torch.randperm(len(prompts), generator=generator).tolist()
    return Built(target, stock, [prompts[i] for i in order], [answers[i] for i in order])


def generate(stock: Any, ids_BP: torch.Tensor) -> list[list[int]]:
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW, pad_token_id=0)
    stock.generation_config = config
    out = stock.generate(ids_BP, attention_mask=torch.ones_like(ids_BP), generation_config=config)
    found: list[list[int]] = out[:, ids_BP.shape[1] :].tolist()
    return found


def check(built: Built, drafter: Drafter, slots: int, count: int | None = None) -> int:
    """Every answer is the expected one, up to a tie; returns how many guesses were accepted."""
    prompts = built.prompts[:count]
    outs = Engine(built.target, drafter, slots).generate(Request(p, NEW) for p in prompts)
    ties = 0
    for prompt, answer, out in zip(prompts, built.answers, outs, strict=False):
        assert len(out.tokens) == NEW
        if out.tokens == answer:
            continue
        at = next(i for i in range(NEW) if out.tokens[i] != answer[i])
        with torch.inference_mode():
            exact = copy.deepcopy(built.stock).double()
            logits_V = exact(torch.tensor([[*prompt, *answer[:at]]])).logits[0, -1]
        margin = float(logits_V.max() - logits_V[[out.tokens[at], answer[at]]].min())
        assert margin < NEAR, f"{drafter.name}, {slots} slots, token {at}: {margin}"
        ties += 1
    assert ties <= 1
    return sum(sum(out.accepted) for out in outs)


def real_draft(built: Built) -> Draft:
    """Random weights over the commonest tokens: a few of its guesses are right."""
    counts = Counter(token for answer in built.answers for token in answer)
    kept = sorted(token for token, _ in counts.most_common(6))
    torch.manual_seed(0)
    target = built.target
    config = DraftConfig.for_target(target.config, target.capture_layers, len(kept))
    draft = Draft(config, target.embed.weight.detach())
    draft.set_vocab(torch.tensor(kept))
    return draft.eval()


@pytest.mark.parametrize("shape", [Shape(depth=3), Shape(depth=3, top_k=4, total=12)], ids=str)
def test_with_real_drafts(built: Built, shape: Shape) -> None:
    drafter = Eagle3(real_draft(built), shape)
    accepted = check(built, drafter, slots=6) + check(built, drafter, slots=1, count=2)
    if shape.top_k > 1:
        assert accepted > 0


@pytest.mark.parametrize("branches", [False, True])
def test_with_golden_guesses(built: Built, branches: bool) -> None:
    known = {tuple(p): a for p, a in zip(built.prompts, built.answers, strict=True)}
    drafter = Golden(known, branches)
    for slots, count in ((5, None), (1, 3)):
        accepted = check(built, drafter, slots, count)
        assert accepted > NEW // 2 * (count or len(built.prompts))
