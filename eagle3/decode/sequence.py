"""One sequence while it is decoded: what stands of it, what of a round is accepted, and its counts.

Shapes: N nodes of a tree (root included), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Any

import torch
from torch import Tensor

from eagle3.decode.drafter import Proposal
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Distributions, Prefix, choices
from eagle3.decode.stopping import Answer, Stop
from eagle3.decode.tree import EMPTY, Tree
from eagle3.decode.verify import accept_greedy, accept_sampled, accept_typical

NO_GUESS = Proposal(EMPTY)


class Sequence:
    """A request in its slot.

    Args:
        context: tokens of prompt and answer together, at most; more than the prompt has.
    """

    def __init__(
        self, number: int, slot: int, request: Request, context: int, tokenizer: Any = None
    ) -> None:
        self.number, self.slot, self.request = number, slot, request
        self.prompt_ids = list(request.prompt_ids)
        self.most = min(request.max_new_tokens, context - len(self.prompt_ids))
        self.answer = Answer(Stop(self.most, request.stop_ids, request.stop_strings), tokenizer)
        self.generator = torch.Generator().manual_seed(request.seed)
        self.out = Generation()
        self._prefix = Prefix(self.prompt_ids)

    @property
    def finished(self) -> bool:
        return self.answer.finish is not None

    @property
    def root(self) -> int:
        """The last token that was emitted; the target has not read it yet."""
        return self.answer.tokens[-1]

    @property
    def room(self) -> int:
        """How deep a draft may go: what may still be emitted before a round's own last token."""
        return self.most - len(self.answer.tokens) - 1

    def choose(
        self, logits_NV: Tensor, largest_N: Ids[int], proposal: Proposal = NO_GUESS
    ) -> tuple[list[int], int]:
        """What stands of a proposal: the nodes of a path, and the token that follows it.

        Args:
            logits_NV: the target's at each node, root first.
            largest_N: the ids of the largest.
        """
        sampling, tree = self.request.sampling, proposal.tree
        if sampling.is_greedy:
            if sampling.adjusts:
                largest_N = choices(logits_NV, sampling, self._prefix, tree)
            return accept_greedy(tree, largest_N)
        p_NV = Distributions(logits_NV, sampling, self._prefix, tree)
        if proposal.typical is not None:
            return accept_typical(tree, p_NV, self.generator, proposal.typical)
        return accept_sampled(tree, p_NV, self.generator, proposal.q_NV)

    def take(self, tokens: Ids[int]) -> tuple[list[int], str]:
        """Emit tokens up to a stop; returns those that stand, and the text that became sure."""
        taken = self.answer.push(tokens)
        stands = list(tokens[: taken.tokens])
        self._prefix.extend(stands)
        return stands, taken.text

    def count(self, tree: Tree, path: list[int], emitted: int) -> None:
        """Count a round, and the drafted and accepted positions in it; none beyond a stop."""
        out = self.out
        out.rounds += 1
        out.drafted += len(tree.tokens)
        for n, node in enumerate([0, *path][:emitted]):
            if not tree.children[node]:
                return
            if n == len(out.reached):
                out.reached.append(0)
                out.accepted.append(0)
            out.reached[n] += 1
            out.accepted[n] += n < len(path)

    def finish(self) -> Generation:
        """The whole answer."""
        assert self.answer.finish is not None
        self.out.tokens, self.out.text = self.answer.tokens, self.answer.text
        self.out.finish = self.answer.finish
        return self.out
