"""Stage `regenerate`: the target writes the answers that the draft will learn from."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from eagle3.config import RegenerateConfig
from eagle3.data.batch import Sequence, decode_batch
from eagle3.data.chat import next_turn, prompt_ids
from eagle3.data.local import open_target, open_tokenizer
from eagle3.data.records import Journal, Message, Prompt, Response, read_records, write_records
from eagle3.run import Context
from eagle3.target import Target

REPORT_EVERY_S = 2.0

_AGAIN = "-"
"""Between a prompt's id (hexadecimal) and the number of a further answer."""

CACHE_BYTES = 2**30
"""Cap on the K/V rows of one batch; a batch of longer prompts holds fewer of them."""


def regenerate(ctx: Context) -> None:
    """Write `responses.jsonl`: greedy answers to every held-out prompt, and answers to the training
    prompts at the recipe's temperatures, in seeded order, until the token budget is reached.

    Resumes: conversations are kept in `work/responses.jsonl` as they are finished.
    """
    prompts = asked_again(
        read_records(ctx.inputs["prepare"] / "prompts.jsonl", Prompt),
        ctx.config.recipe.regenerate.answers,
    )
    journal = Journal(ctx.out / "work" / "responses.jsonl", Response)
    try:
        writer = Writer(ctx, open_target(ctx), open_tokenizer(ctx), journal, prompts)
        for batch in planned(prompts, writer):
            writer.answer(batch)
    finally:
        journal.close()
    order = {prompt.id: i for i, prompt in enumerate(prompts)}
    records = sorted(journal.records, key=lambda r: order[r.id])
    write_records(ctx.out / "responses.jsonl", records)
    writer.summarise()


def asked_again(prompts: list[Prompt], answers: int) -> list[Prompt]:
    """The prompts, then each training prompt once more for each further answer, under an id of its
    own: prompt `ab12` gives the answers `ab12`, `ab12-1`, …"""
    again = [
        prompt.model_copy(update={"id": f"{prompt.id}{_AGAIN}{n}"})
        for n in range(1, answers)
        for prompt in prompts
        if prompt.split == "train"
    ]
    return prompts + again


def planned(prompts: list[Prompt], writer: Writer) -> Iterator[list[Prompt]]:
    """The batches to answer, held-out first. A resumed run gets the same ones: what they hold
    depends on the seed and on what the batches before gave, never on where a run was stopped."""
    config, seed = writer.config, writer.seed
    yield from batches([p for p in prompts if p.split == "heldout"], config, seed, writer.row_bytes)
    left = math.inf if config.token_budget is None else config.token_budget
    for batch in batches(
        [p for p in prompts if p.split == "train"], config, seed, writer.row_bytes
    ):
        if left <= 0:
            return
        if left < len(batch) * config.max_new_tokens:
            batch = batch[: math.ceil(left / config.max_new_tokens)]
        yield batch
        left -= sum(writer.tokens[p.id] for p in batch)


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


@dataclass
class Conversation:
    """A conversation being written."""

    prompt: Prompt
    turns: list[list[Message]]
    """The turns that have not been asked yet."""
    history: list[Message]
    ids: list[int]
    spans: list[tuple[int, int]] = field(default_factory=list)


class Writer:
    """Answers batches of prompts and reports how fast."""

    def __init__(
        self,
        ctx: Context,
        target: Target,
        tokenizer: PreTrainedTokenizerBase,
        journal: Journal[Response],
        prompts: list[Prompt],
    ) -> None:
        self.ctx, self.target, self.tokenizer, self.journal = ctx, target, tokenizer, journal
        self.config, self.seed = ctx.config.recipe.regenerate, ctx.config.recipe.seed
        self.end_ids = target.eos_ids()
        self.context: int = target.config.max_position_embeddings
        self.tokens = {r.id: r.answer_tokens() for r in journal.records}
        """Answer tokens of each conversation that is finished."""
        self.num_heldout = sum(p.split == "heldout" for p in prompts)
        self.num_train = len(prompts) - self.num_heldout
        self.cut_short = 0
        self._old_tokens = sum(self.tokens.values())
        self._new_tokens = 0
        self._started = self._reported = time.monotonic()

    @property
    def row_bytes(self) -> int:
        """Bytes of K and V that one token takes in all layers."""
        config = self.target.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * self.target.num_layers * heads * dim * self.target.dtype.itemsize)

    def answer(self, batch: list[Prompt]) -> None:
        """Write the conversations of a batch, turn by turn; those that are finished are skipped."""
        talks = [self._open(p) for p in batch if p.id not in self.tokens]
        while talks:
            self.ctx.check_stop("finished conversations are kept")
            sequences = [self._sequence(talk) for talk in talks]
            decode_batch(self.target, sequences, self.end_ids, self._count)
            talks = [t for t, s in zip(talks, sequences, strict=True) if not self._close(t, s)]

    def summarise(self) -> None:
        records = self.journal.records
        train = [r for r in records if r.split == "train"]
        seconds = time.monotonic() - self._started
        self.ctx.summary.update(
            train_samples=len(train),
            heldout_samples=len(records) - len(train),
            response_tokens=sum(self.tokens.values()),
            train_response_tokens=sum(self.tokens[r.id] for r in train),
            tokens_per_s=round(self._new_tokens / seconds, 2),
            temperature=self.config.temperature,
            answers=self.config.answers,
            further_temperature=self.config.further_temperature,
            seed=self.seed,
        )
        if self.cut_short:
            self.ctx.progress.warning(
                f"{self.cut_short} conversations end early: the next turn did not fit the context"
            )

    def _open(self, prompt: Prompt) -> Conversation:
        first, *later = prompt.turns()
        return Conversation(prompt, later, first, prompt_ids(self.tokenizer, first))

    def _sequence(self, talk: Conversation) -> Sequence:
        name = f"{self.seed}/{talk.prompt.id}/{len(talk.turns)}"
        return Sequence(
            prompt=talk.ids,
            max_new_tokens=min(self.config.max_new_tokens, self.context - len(talk.ids)),
            temperature=self._temperature(talk.prompt),
            seed=int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"),
        )

    def _temperature(self, prompt: Prompt) -> float:
        if prompt.split == "heldout":
            return 0.0
        further = _AGAIN in prompt.id
        return self.config.further_temperature if further else self.config.temperature

    def _close(self, talk: Conversation, sequence: Sequence) -> bool:
        """Add an answer and ask the next turn; True when the conversation is finished."""
        talk.spans.append((len(talk.ids), len(talk.ids) + len(sequence.answer)))
        talk.ids = talk.ids + sequence.answer
        if talk.turns:
            ids, history, kept = next_turn(
                self.tokenizer,
                talk.history,
                talk.ids,
                sequence.answer,
                talk.turns[0],
                self.end_ids,
            )
            if len(ids) < self.context:
                talk.ids, talk.history, talk.turns = ids, history, talk.turns[1:]
                talk.spans = talk.spans if kept else []
                return False
            self.cut_short += 1
        response = Response(
            id=talk.prompt.id,
            split=talk.prompt.split,
            ids=talk.ids,
            spans=talk.spans,
            finish=sequence.finish,
        )
        self.journal.append(response)
        self.tokens[response.id] = response.answer_tokens()
        return True

    def _count(self, new_tokens: int) -> None:
        self._new_tokens += new_tokens
        now = time.monotonic()
        if now - self._reported >= REPORT_EVERY_S:
            self._reported = now
            done = self._old_tokens + self._new_tokens
            self.ctx.progress.progress(done, max(done, self._expected()), "token")
        self.ctx.check_stop("finished conversations are kept")

    def _expected(self) -> float:
        """Answer tokens in all, judged by the conversations that are finished."""
        mean = sum(self.tokens.values()) / len(self.tokens) if self.tokens else 0.0
        mean = mean or self.config.max_new_tokens
        budget = self.config.token_budget or math.inf
        return round(self.num_heldout * mean + min(self.num_train * mean, budget))
