"""A server with an OpenAI-compatible API that serves the target; many conversations at once.

A conversation is asked turn by turn, each turn in a request of its own, and is in the journal as
soon as it is finished. TERM drops the requests in progress: the server stops working on them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine
from typing import TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from eagle3.data.engines.client import Client, Retry
from eagle3.data.engines.completions import Reader, written
from eagle3.data.engines.conversation import Ledger
from eagle3.data.engines.served import Served, ask, judge
from eagle3.data.records import Prompt, Response
from eagle3.run import Context
from eagle3.target import Target

T = TypeVar("T")

PROBES = 8
"""Prompts by which the server's model is told from others."""
POLL_S = 0.2
"""How soon TERM is noticed."""
QUEUE_S, TOKEN_S = 120.0, 1.0
"""Longest wait for an answer: in the server's queue, and for each token it may have."""


class Server:
    """Answers with requests to the server that the recipe names.

    Args:
        target: what the server must serve; let go of once that is known.
    """

    def __init__(
        self,
        ctx: Context,
        target: Target,
        tokenizer: PreTrainedTokenizerBase,
        retry: Retry | None = None,
    ) -> None:
        self.ctx, self.tokenizer = ctx, tokenizer
        self.config = ctx.config.recipe.regenerate
        self.end_ids = target.eos_ids()
        self.context: int = target.context
        self._target: Target | None = target
        self._retry = retry or Retry()
        self._failures: dict[str, int] = {}
        self._inexact = 0

    def answer(self, ledger: Ledger, prompts: list[Prompt]) -> list[Response]:
        line = Line(prompts, ledger, self.config.token_budget)
        if not line.enough():
            served = self._check(prompts, ledger)
            ledger.begin()
            asyncio.run(self._watched(self._write(served.reader, ledger, line), ledger))
        self._tell()
        return line.result()

    def _check(self, prompts: list[Prompt], ledger: Ledger) -> Served:
        """Make sure that the server serves the target, with room for the prompts."""
        target, self._target = self._target, None
        assert target is not None
        shortest = sorted(prompts, key=lambda p: (p.split != "heldout", p.prompt_tokens, p.id))
        probes = [ledger.open(prompt).ids for prompt in shortest[:PROBES]]
        longest = max(p.prompt_tokens for p in prompts) + self.config.max_new_tokens
        asking = self._ask(target, probes, min(longest, self.context))
        served = asyncio.run(self._watched(asking, ledger))
        self.ctx.summary["served"] = judge(served, target, self.tokenizer, ledger.check_stop)
        del target
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the server may want it, on the same device
        if served.context is not None:
            ledger.context = min(ledger.context, served.context)
        return served

    async def _ask(self, target: Target, probes: list[list[int]], longest: int) -> Served:
        async with self._client() as client:
            return await ask(client, self.config.model, self.tokenizer, target, probes, longest)

    async def _write(self, reader: Reader, ledger: Ledger, line: Line) -> None:
        async with self._client() as client:
            workers = {
                asyncio.create_task(self._converse(client, reader, ledger, line))
                for _ in range(self.config.concurrency)
            }
            try:
                while workers and not line.enough():
                    done, workers = await asyncio.wait(
                        workers, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION
                    )
                    for worker in done:
                        worker.result()
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _converse(self, client: Client, reader: Reader, ledger: Ledger, line: Line) -> None:
        """One conversation after another, from the head of the line."""
        while (prompt := line.next()) is not None:
            talk = ledger.open(prompt)
            finished = False
            while not finished:
                sequence = ledger.sequence(talk)
                answer = await written(client, reader, sequence)
                self._inexact += not answer.exact
                for token in answer.ids:
                    sequence.take(token, self.end_ids)
                finished = ledger.close(talk, sequence)
                ledger.count(len(answer.ids))

    async def _watched(self, work: Coroutine[None, None, T], ledger: Ledger) -> T:
        """Do the work, but stop as soon as TERM comes, whatever it waits for."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=POLL_S))[0]:
                ledger.count(0)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _client(self) -> Client:
        assert self.config.base_url is not None
        return Client(
            self.config.base_url,
            concurrency=self.config.concurrency,
            timeout_s=QUEUE_S + TOKEN_S * self.config.max_new_tokens,
            retry=self._retry,
            on_failure=self._failed,
        )

    def _failed(self, message: str) -> None:
        """Tell of a kind of failure once, and count it."""
        kind = message.split(":")[0]
        if kind not in self._failures:
            self.ctx.progress.warning(f"the server gave {message}; trying again")
        self._failures[kind] = self._failures.get(kind, 0) + 1

    def _tell(self) -> None:
        self.ctx.summary.update(retries=sum(self._failures.values()), not_round_trip=self._inexact)
        if self._inexact:
            self.ctx.progress.warning(
                f"{self._inexact} answers came as text that does not round-trip through the "
                "tokenizer: their token ids may not be those that the target wrote"
            )


class Line:
    """The conversations in the order in which they are asked, held-out ones first, and how many of
    them make the result: all, or as many as reach the budget.

    Answers come in any order. The result is the head of the line, so that it depends on what the
    answers are and not on which of them was faster; what has been finished beyond is left out.
    """

    def __init__(self, prompts: list[Prompt], ledger: Ledger, budget: int | None) -> None:
        shuffle = random.Random(ledger.seed)  # noqa: S311 (an order, not a secret)
        shuffled = shuffle.sample(prompts, len(prompts))
        self._line = sorted(shuffled, key=lambda p: p.split != "heldout")
        self._ledger = ledger
        self._budget = math.inf if budget is None else budget
        self._waiting = iter([p for p in self._line if p.id not in ledger.tokens])
        self._head, self._head_tokens = 0, 0

    def next(self) -> Prompt | None:
        """The next conversation to ask; none when those that are finished reach the budget: with
        those in progress, the head of the line then will."""
        prompt = next(self._waiting, None)
        if prompt is None or (
            prompt.split == "train" and self._ledger.train_tokens >= self._budget
        ):
            return None
        return prompt

    def enough(self) -> bool:
        """Whether the head of the line is finished and reaches the budget, or is all there is."""
        while self._head < len(self._line):
            prompt = self._line[self._head]
            train = prompt.split == "train"
            if train and self._head_tokens >= self._budget:
                return True
            if prompt.id not in self._ledger.tokens:
                return False
            self._head_tokens += self._ledger.tokens[prompt.id] if train else 0
            self._head += 1
        return True

    def result(self) -> list[Response]:
        assert self.enough()
        ids = {prompt.id for prompt in self._line[: self._head]}
        return [r for r in self._ledger.journal.records if r.id in ids]
