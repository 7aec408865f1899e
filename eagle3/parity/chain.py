"""What training expects: its own simulated chain, along the target's greedy answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from eagle3.bench.prompts import HeldOut
from eagle3.data.features import Sample
from eagle3.draft import Draft
from eagle3.parity.agree import Position, Rounds, positions
from eagle3.proof.reference import Reference
from eagle3.target import Target
from eagle3.train.batch import pack
from eagle3.train.evaluate import agreeing


class Remembering(Reference):
    """The target as transformers runs it; an answer is written once, however often it is asked."""

    @cached_property
    def _known(self) -> dict[tuple[tuple[int, ...], int], list[int]]:
        return {}

    def greedy(self, ids: list[int], max_new_tokens: int) -> list[int]:
        key = (tuple(ids), max_new_tokens)
        if key not in self._known:
            self._known[key] = super().greedy(ids, max_new_tokens)
        return self._known[key]


@dataclass(frozen=True)
class Expected:
    """Rounds of the trainer's chain. An answer's last round is counted in two ways, for engines
    differ: in `whole` it drafts on past the answer's end, in `cut` no deeper than what is emitted,
    and not at all where one token is left."""

    whole: Rounds
    cut: Rounds

    def places(self, found: Rounds) -> list[Position]:
        """The comparison with an engine, by the way of counting that it is nearer to."""
        both = [positions(expected, found) for expected in (self.whole, self.cut)]
        return min(both, key=lambda places: sum(abs(p.found - p.expected) for p in places))


@torch.inference_mode()
def simulated(
    target: Target,
    draft: Draft,
    prompts: Sequence[HeldOut],
    answers: Sequence[list[int]],
    most: int,
    depth: int,
) -> Expected:
    """Greedy chains along the answers, from features as training stores them.

    Args:
        answers: of `most` tokens, and as many more as a chain has, unless they ended before.
        most: tokens that an engine is to emit.
    """
    counts = [_Count(depth), _Count(depth)]
    for prompt, answer in zip(prompts, answers, strict=True):
        sample = _sample(target, [*prompt.ids, *answer], len(prompt.ids))
        batch = pack([sample], depth, draft.fc.weight.dtype, draft.fc.weight.device)
        rows_R = batch.supervised_ST[0].nonzero()[:, 0]
        if len(rows_R):
            agree = agreeing(draft, batch, rows_R, depth)
            _walk(counts, agree, min(most, len(answer)), depth)
    whole, cut = (Rounds(count.rounds, tuple(count.accepted)) for count in counts)
    return Expected(whole, cut)


class _Count:
    def __init__(self, depth: int) -> None:
        self.rounds, self.accepted = 0, [0] * depth

    def add(self, accepted: int) -> None:
        self.rounds += 1
        for n in range(accepted):
            self.accepted[n] += 1


def _walk(counts: Sequence[_Count], agree: Sequence[int], tokens: int, depth: int) -> None:
    """The rounds of one answer, whose first token comes from the prefill.

    Args:
        agree: for each round that could start, after the answer's tokens in order, how many tokens
            of its chain agree with the answer.
    """
    whole, cut = counts
    emitted = 1
    while emitted < tokens:
        matched = min(agree[emitted - 1], depth) if emitted <= len(agree) else 0
        room = min(depth, tokens - emitted - 1)
        whole.add(matched)
        if room:
            cut.add(min(matched, room))
        emitted += min(matched, room) + 1


def _sample(target: Target, ids: list[int], start: int) -> Sample:
    ids_1L = torch.tensor([ids], device=target.device)
    hidden, features = target.forward(ids_1L, target.new_cache(len(ids)), capture=True)
    assert features is not None
    unknown = torch.full((len(ids),), -1)
    return Sample(
        "",
        "heldout",
        ids_1L[0],
        features[0].to(torch.bfloat16),
        hidden[0],
        unknown,
        unknown.float(),
        [(start, len(ids))],
    )
