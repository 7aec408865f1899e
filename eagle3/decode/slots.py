"""The sequences that are decoded together, and what happens to them: one is taken up; a round.

Shapes: N nodes of a tree (root included), H hidden size, 3H the three captured features.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ids
from typing import Any

import torch

from eagle3.decode.drafter import Drafter, Proposal, Seen
from eagle3.decode.forward import Said, read_prompt, read_trees
from eagle3.decode.request import Emission, Request
from eagle3.decode.sequence import NO_GUESS, Sequence
from eagle3.target import Target


class Slots:
    """Sequences of different lengths, each in a slot of its own, and the caches they share."""

    def __init__(self, target: Target, drafter: Drafter, slots: int, tokenizer: Any) -> None:
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.capture = drafter.capture_layers is not None
        self.cache = target.new_cache(target.context + drafter.most_nodes + 1, slots, in_use=False)
        self.session = drafter.session(slots, target.context)
        self.open: dict[int, Sequence] = {}
        self.free = list(range(slots))[::-1]
        self.began = time.perf_counter()

    @torch.inference_mode()
    def take_up(self, number: int, request: Request) -> Emission:
        """Give a request a free slot: read its prompt in, and emit its first token."""
        started = time.perf_counter()
        sequence = Sequence(
            number, self.free[-1], request, self.target.context, tokenizer=self.tokenizer
        )
        slot = self.free.pop()
        line = self.cache.open(slot)
        others = list(self.open.values())
        self.open[slot] = sequence
        sequence.out.started_s = started - self.began
        said = read_prompt(self.target, self.cache, line, sequence.prompt_ids, self.capture)
        _, token = sequence.choose(said.logits[0], said.largest[0])
        emission = self._emit(sequence, [token])
        if not sequence.finished:
            self.session.open(slot, sequence.prompt_ids, request.sampling, sequence.generator)
            ids = sequence.prompt_ids
            seen = self._seen(said, 0, ids, [*ids[1:], token], range(len(ids)))
            self.session.observe({slot: seen})
        else:
            self._close(sequence)
        sequence.out.prefill_s = time.perf_counter() - started
        for other in others:
            other.out.decode_s += sequence.out.prefill_s
            other.out.timings.prefill += sequence.out.prefill_s
        return emission

    @torch.inference_mode()
    def round(self) -> list[Emission]:
        """One target forward: each sequence's root and what was guessed after it."""
        began = time.perf_counter()
        sequences = [self.open[slot] for slot in self.cache.slots]
        room = {s.slot: s.room for s in sequences if s.room > 0}
        found = self.session.propose(room) if room else {}
        guessed = time.perf_counter()
        proposals = [found.get(s.slot, NO_GUESS) for s in sequences]
        trees = [proposal.tree for proposal in proposals]
        roots = [s.root for s in sequences]
        read = time.perf_counter()
        said = read_trees(self.target, self.cache, roots, trees, self.capture)
        verified = time.perf_counter()
        emissions, seen = self._settle(sequences, proposals, said)
        settled = time.perf_counter()
        if seen:
            self.session.observe(seen)
        ended = time.perf_counter()
        for sequence in sequences:
            times = sequence.out.timings
            times.draft += guessed - began + ended - settled
            times.target += verified - read
            times.other += read - guessed + settled - verified
            sequence.out.decode_s += ended - began
        return emissions

    def _settle(
        self, sequences: list[Sequence], proposals: list[Proposal], said: Said
    ) -> tuple[list[Emission], dict[int, Seen]]:
        """What stands of a round, in the caches and of each sequence."""
        emissions, seen, kept = [], {}, []
        for line, (sequence, proposal) in enumerate(zip(sequences, proposals, strict=True)):
            tree, largest = proposal.tree, said.largest[line]
            path, token = sequence.choose(said.logits[line], largest, proposal)
            rows = [0, *path]
            root, tokens = sequence.root, [*(tree.tokens[node - 1] for node in path), token]
            kept.append(rows)
            emissions.append(self._emit(sequence, tokens))
            sequence.count(tree, path, len(emissions[-1].tokens))
            if not sequence.finished:
                read = [root, *tokens[:-1]]
                seen[sequence.slot] = self._seen(said, line, read, tokens, rows, largest)
        self.cache.settle(kept)
        for sequence in sequences:
            if sequence.finished:
                self.session.close(sequence.slot)
                self._close(sequence)
        return emissions, seen

    def _emit(self, sequence: Sequence, tokens: Ids[int]) -> Emission:
        stands, text = sequence.take(tokens)
        out = sequence.out
        out.stamps += [time.perf_counter() - self.began - out.started_s] * len(stands)
        done = sequence.finish() if sequence.finished else None
        return Emission(sequence.number, stands, text, done)

    def _close(self, sequence: Sequence) -> None:
        self.cache.close(sequence.slot)
        del self.open[sequence.slot]
        self.free.append(sequence.slot)

    def _seen(
        self,
        said: Said,
        line: int,
        ids: Ids[int],
        next_ids: Ids[int],
        rows: Ids[int],
        largest: Ids[int] = (),
    ) -> Seen:
        """What the drafter is told: these rows of a line, of what it asked to see."""
        at = slice(len(rows)) if rows[-1] == len(rows) - 1 else list(rows)
        features, hidden = said.features_BN3H, said.hidden_BNH
        return Seen(
            ids,
            next_ids,
            None if features is None else features[line, at],
            hidden[line, at] if self.drafter.reads_hidden else None,
            largest,
        )
