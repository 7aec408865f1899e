"""Greedy decoding around a session, with a function of the text in the place of the target.

What the engine does, written down plainly: no cache, no batch, the target is asked at every node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from eagle3.decode.drafter import Drafter, Proposal, Seen, Session
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import EMPTY
from eagle3.decode.verify import accept_greedy

Say = Callable[[list[int]], int]
"""The next token of a text."""


@dataclass
class Decoded:
    prompt: list[int]
    tokens: list[int]
    rounds: int = 0
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.tokens]


def plain(say: Say, prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(say(text))
    return text[len(prompt) :]


def start(session: Session, say: Say, slot: int, prompt: list[int]) -> Decoded:
    """Open a slot and let it see the prefill."""
    session.open(slot, prompt, Sampling(), torch.Generator().manual_seed(slot))
    first = say(prompt)
    session.observe({slot: Seen(prompt, [*prompt[1:], first], None, None)})
    return Decoded(prompt, [first])


def advance(
    drafter: Drafter, session: Session, say: Say, decoded: dict[int, Decoded], count: int
) -> None:
    """One round of these slots; those that have `count` tokens are closed and taken out."""
    room = {slot: count - len(one.tokens) - 1 for slot, one in decoded.items()}
    proposals = session.propose({slot: depth for slot, depth in room.items() if depth > 0})
    seen = {}
    for slot, one in list(decoded.items()):
        proposal = proposals.get(slot, Proposal(EMPTY))
        tree = proposal.tree
        assert max(tree.depths) <= max(room[slot], 0)
        assert len(tree.tokens) <= drafter.most_nodes
        assert all(parent < node for node, parent in enumerate(tree.parents, start=1))
        paths: list[list[int]] = [[]]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append([*paths[parent], token])
        choices = [say([*one.text, *path]) for path in paths]
        accepted, bonus = accept_greedy(tree, choices)
        ids = [one.tokens[-1], *(tree.tokens[node - 1] for node in accepted)]
        next_ids = [*ids[1:], bonus]
        one.tokens += next_ids
        one.rounds += 1
        one.proposals.append(proposal)
        if len(one.tokens) >= count:
            session.close(slot)
            del decoded[slot]
        else:
            seen[slot] = Seen(ids, next_ids, None, None, choices)
    if seen:
        session.observe(seen)


def decode(drafter: Drafter, say: Say, prompts: list[list[int]], count: int) -> list[Decoded]:
    """Decode prompts together, each in a slot of its own."""
    session = drafter.session(len(prompts), 4096)
    out = [start(session, say, slot, prompt) for slot, prompt in enumerate(prompts)]
    going = dict(enumerate(out))
    while going:
        advance(drafter, session, say, going, count)
    return out


def cycle(length: int) -> Say:
    """Counts around: after t comes t + 1, after the last one 0."""
    return lambda text: (text[-1] + 1) % length


def scrambled(vocab: int) -> Say:
    """The next token depends on the last three; answers run into loops of their own."""

    def say(text: list[int]) -> int:
        a, b, c = ([0, 0, *text])[-3:]
        return (a * a * 7 + b * 31 + c * c * c + 5) % vocab

    return say
