"""Conversations on their way to being finished, whoever writes the answers."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from eagle3.data.batch import Sequence
from eagle3.data.chat import next_turn, prompt_ids
from eagle3.data.records import Journal, Message, Prompt, Response, Written
from eagle3.run import Context

REPORT_EVERY_S, REPORT_SILENCE_S = 2.0, 20.0

AGAIN = "-"
"""Between a prompt's id (hexadecimal) and the number of a further answer."""


@dataclass
class Conversation:
    """A conversation being written."""

    prompt: Prompt
    turns: list[list[Message]]
    """The turns that have not been asked yet."""
    history: list[Message]
    ids: list[int]
    spans: list[tuple[int, int]] = field(default_factory=list)
    earlier: list[Written] = field(default_factory=list)


class Ledger:
    """Opens conversations, asks their turns, keeps those that are finished, and reports how fast.

    Args:
        journal: keeps finished conversations over a stop.
        end_ids: token ids that end an answer.
        context: most tokens of a conversation.
    """

    def __init__(
        self,
        ctx: Context,
        tokenizer: PreTrainedTokenizerBase,
        journal: Journal[Response],
        prompts: list[Prompt],
        end_ids: frozenset[int],
        context: int,
    ) -> None:
        self.ctx, self.tokenizer, self.journal = ctx, tokenizer, journal
        self.config, self.seed = ctx.config.recipe.regenerate, ctx.config.recipe.seed
        self.end_ids, self.context = end_ids, context
        self.tokens = {r.id: r.answer_tokens() for r in journal.records}
        """Answer tokens of each conversation that is finished."""
        self.train_tokens = sum(r.answer_tokens() for r in journal.records if r.split == "train")
        self.cut_short = 0
        self._num_heldout = sum(p.split == "heldout" for p in prompts)
        self._num_train = len(prompts) - self._num_heldout
        self._old_tokens = sum(self.tokens.values())
        self._new_tokens = 0
        self.begin()

    def begin(self) -> None:
        """The first answer is about to be written: count the time from here."""
        self._started = self._reported = time.monotonic()

    def open(self, prompt: Prompt) -> Conversation:
        first, *later = prompt.turns()
        ids = prompt.ids or prompt_ids(self.tokenizer, first, prompt.tools)
        return Conversation(prompt, later, first, ids)

    def sequence(self, talk: Conversation) -> Sequence:
        """The next answer of a conversation, to be written."""
        name = f"{self.seed}/{talk.prompt.id}/{len(talk.turns)}"
        return Sequence(
            prompt=talk.ids,
            max_new_tokens=min(self.config.max_new_tokens, self.context - len(talk.ids)),
            temperature=self._temperature(talk.prompt),
            seed=int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"),
        )

    def close(self, talk: Conversation, sequence: Sequence) -> bool:
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
                talk.prompt.tools,
            )
            if len(ids) < self.context:
                if not kept:  # a sample of its own; of held-out conversations the last answer does
                    train = talk.prompt.split == "train"
                    talk.earlier += [Written(ids=talk.ids, spans=talk.spans)] if train else []
                    talk.spans = []
                talk.ids, talk.history, talk.turns = ids, history, talk.turns[1:]
                return False
            self.cut_short += 1
        response = Response(
            id=talk.prompt.id,
            split=talk.prompt.split,
            ids=talk.ids,
            spans=talk.spans,
            finish=sequence.finish,
            earlier=talk.earlier,
        )
        self.journal.append(response)
        self.tokens[response.id] = response.answer_tokens()
        self.train_tokens += response.answer_tokens() if response.split == "train" else 0
        return True

    def count(self, new_tokens: int) -> None:
        """Count tokens that were just written, and report now and then.

        Raises:
            Stopped: TERM or INT has come.
        """
        self._new_tokens += new_tokens
        now = time.monotonic()
        if now - self._reported >= (REPORT_EVERY_S if new_tokens else REPORT_SILENCE_S):
            self._reported = now
            done = self._old_tokens + self._new_tokens
            self.ctx.progress.progress(done, max(done, self._expected()), "token")
        self.check_stop()

    def check_stop(self) -> None:
        self.ctx.check_stop("finished conversations are kept")

    def summarise(self, records: list[Response]) -> None:
        """Put the facts of the result into the manifest."""
        train = [r for r in records if r.split == "train"]
        seconds = time.monotonic() - self._started
        self.ctx.summary.update(
            engine=self.config.engine,
            mode=self.config.mode,
            train_samples=len(train),
            heldout_samples=len(records) - len(train),
            response_tokens=sum(r.answer_tokens() for r in records),
            train_response_tokens=sum(r.answer_tokens() for r in train),
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

    def _temperature(self, prompt: Prompt) -> float:
        if prompt.split == "heldout":
            return 0.0
        further = AGAIN in prompt.id
        return self.config.further_temperature if further else self.config.temperature

    def _expected(self) -> float:
        """Answer tokens in all, judged by the conversations that are finished."""
        mean = sum(self.tokens.values()) / len(self.tokens) if self.tokens else 0.0
        mean = mean or self.config.max_new_tokens
        budget = self.config.token_budget or math.inf
        return round(self._num_heldout * mean + min(self._num_train * mean, budget))
