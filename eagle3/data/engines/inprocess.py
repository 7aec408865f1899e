"""The target in this process, in batches of like length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from eagle3 import fit
from eagle3.config import RegenerateConfig
from eagle3.data.batch import decode_batch
from eagle3.data.engines.conversation import Ledger
from eagle3.data.records import Prompt, Response
from eagle3.target import Target

CACHE_BYTES = 2**30
"""Cap on the K/V rows of one batch; a batch of longer prompts holds fewer of them."""


class InProcess:
    """Answers with the target that is loaded here."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.end_ids = target.eos_ids()
        self.context: int = target.context

    def answer(self, ledger: Ledger, prompts: list[Prompt]) -> list[Response]:
        for batch in planned(prompts, ledger, self.row_bytes):
            self._write(ledger, batch)
        return ledger.journal.records

    @property
    def row_bytes(self) -> int:
        """About the bytes of K and V that one token takes in all layers."""
        _, heads, dim = fit.heads(self.target.config)
        return 2 * self.target.num_layers * heads * dim * self.target.dtype.itemsize

    def _write(self, ledger: Ledger, batch: list[Prompt]) -> None:
        """The conversations of a batch, turn by turn; those that are finished are skipped."""
        talks = [ledger.open(p) for p in batch if p.id not in ledger.tokens]
        while talks:
            ledger.check_stop()
            sequences = [ledger.sequence(talk) for talk in talks]
            decode_batch(self.target, sequences, self.end_ids, ledger.count)
            talks = [t for t, s in zip(talks, sequences, strict=True) if not ledger.close(t, s)]


def planned(prompts: list[Prompt], ledger: Ledger, row_bytes: int) -> Iterator[list[Prompt]]:
    """The batches to answer, held-out first. A resumed run gets the same ones: what they hold
    depends on the seed and on what the batches before gave, never on where a run was stopped."""
    config, seed = ledger.config, ledger.seed
    yield from batches([p for p in prompts if p.split == "heldout"], config, seed, row_bytes)
    left = math.inf if config.token_budget is None else config.token_budget
    for batch in batches([p for p in prompts if p.split == "train"], config, seed, row_bytes):
        if left <= 0:
            return
        if left < len(batch) * config.max_new_tokens:
            batch = batch[: math.ceil(left / config.max_new_tokens)]
        yield batch
        left -= sum(ledger.tokens[p.id] for p in batch)


def batches(
    prompts: list[Prompt], config: RegenerateConfig, seed: int, row_bytes: int
) -> list[list[Prompt]]:
    """Prompts of like length together, in an order that does not go from short to long: a budget
    that ends early must leave a fair sample."""
    shuffle = random.Random(seed)  # noqa: S311 (an order, not a secret)
    prompts = shuffle.sample(prompts, len(prompts))
    window = 4 * config.batch_size
    found: list[list[Prompt]] = []
    for start in range(0, len(prompts), window):
        part: list[list[Prompt]] = []
        ascending = sorted(prompts[start : start + window], key=lambda p: (p.prompt_tokens, p.id))
        for prompt in ascending:
            rows = prompt.prompt_tokens + len(prompt.turns()) * config.max_new_tokens
            room = max(1, min(config.batch_size, CACHE_BYTES // (rows * row_bytes)))
            if not part or len(part[-1]) >= room:
                part.append([])
            part[-1].append(prompt)
        found += shuffle.sample(part, len(part))
    return found
