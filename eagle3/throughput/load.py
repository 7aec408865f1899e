"""Load on a running engine: a fixed number of requests in progress, or arrivals at a fixed rate.

This generator is for engines that bring none (llama.cpp, ours), and where theirs is not installed;
`tools` drives vLLM's and SGLang's own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from typing import Any, Protocol, runtime_checkable

import httpx

from eagle3.bench.metrics import Reply
from eagle3.engines.engine import Running, Sampling
from eagle3.engines.http import Dialect, Refused, client, stream, together
from eagle3.errors import BadInput, EngineFailed

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Load:
    """Requests, and when they are sent."""

    requests: int
    concurrency: int | None = None
    """A closed loop: as many requests in progress, each answer followed by the next request."""
    rate: float | None = None
    """An open loop: requests a second, at the times of a Poisson process."""

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("a load has a concurrency or a rate")

    def prompts(self, prompts: Prompts) -> Prompts:
        """One for each request; from the first one again when they are used up."""
        return list(islice(cycle(prompts), self.requests))

    def arrivals(self, seed: int = 0) -> list[float]:
        """Of an open loop, when each request is sent, in seconds; alike for every run."""
        assert self.rate is not None
        draw, at, times = random.Random(seed), 0.0, []  # noqa: S311 (arrivals, not a secret)
        for _ in range(self.requests):
            times.append(at)
            at += draw.expovariate(self.rate)
        return times


@dataclass(frozen=True)
class Heard:
    """What came back, and how long all of it took."""

    replies: Sequence[Reply]
    seconds: float
    streamed: bool = True
    """Whether the times within an answer are known."""


class Generator(Protocol):
    name: str
    counts: bool
    """Whether what a run drafted and accepted is in the engine's `metrics` afterwards."""

    def run(self, running: Running, prompts: Prompts, load: Load, sampling: Sampling) -> Heard:
        """Send the load and wait for every answer.

        Raises:
            EngineFailed: a request failed; no figure leaves one out.
        """


AT_ONCE_S = 0.001
"""llama.cpp sends each token of a round in a message of its own; those that come within a
millisecond of the first came at once. No round of a served model is as short."""


@runtime_checkable
class Streaming(Protocol):
    """A running engine whose server streams token ids (`eagle3/engines/served.py`)."""

    url: str
    dialect: Dialect


class Own:
    """The generator of this package: over HTTP, or by `generate` where an engine has no server."""

    name, counts = "own", True

    def run(self, running: Running, prompts: Prompts, load: Load, sampling: Sampling) -> Heard:
        if not isinstance(running, Streaming):
            if load.rate is not None:
                raise BadInput(
                    "this engine decodes in this process and has no server to send requests to",
                    "leave out --rate, or take an engine with a server",
                )
            return _generate(running, load.prompts(prompts), sampling)
        try:
            return asyncio.run(_send(running, load.prompts(prompts), load, sampling))
        except (Refused, TimeoutError, httpx.HTTPError) as e:
            log = f"; its log is {running.log}" if running.log else ""
            raise EngineFailed(
                f"{running.url} failed under load ({type(e).__name__}: {e}){log}",
                "lower the load, or give it more memory or time",
            ) from None


def _generate(running: Running, prompts: Prompts, sampling: Sampling) -> Heard:
    started = time.perf_counter()
    answers = running.generate(prompts, sampling)
    seconds = time.perf_counter() - started
    return Heard([Reply(len(a.tokens), a.seconds, ()) for a in answers], seconds, streamed=False)


async def _send(running: Streaming, prompts: Prompts, load: Load, sampling: Sampling) -> Heard:
    at_once = load.concurrency or load.requests
    async with client(running.url, at_once, sampling.timeout_seconds) as http:
        # A connection that is used again may be one that the server just closed.
        http.headers["Connection"] = "close"

        async def one(prompt: Sequence[int]) -> Reply:
            async with asyncio.timeout(sampling.timeout_seconds):
                return await _reply(http, running.dialect, prompt, sampling)

        started = time.perf_counter()
        replies = await (
            _closed(one, prompts, at_once) if load.rate is None else _open(one, prompts, load)
        )
        return Heard(replies, time.perf_counter() - started)


Ask = Callable[[Sequence[int]], Coroutine[Any, Any, Reply]]


async def _closed(ask: Ask, prompts: Prompts, concurrency: int) -> list[Reply]:
    waiting: Iterator[Sequence[int]] = iter(prompts)

    async def reader() -> list[Reply]:
        return [await ask(prompt) for prompt in waiting]

    return [
        reply
        for replies in await together([reader() for _ in range(concurrency)])
        for reply in replies
    ]


async def _open(ask: Ask, prompts: Prompts, load: Load) -> list[Reply]:
    async def later(prompt: Sequence[int], at: float) -> Reply:
        await asyncio.sleep(at)
        return await ask(prompt)

    arrivals = load.arrivals()
    return await together([later(p, at) for p, at in zip(prompts, arrivals, strict=True)])


async def _reply(
    http: httpx.AsyncClient, dialect: Dialect, prompt: Sequence[int], sampling: Sampling
) -> Reply:
    started, tokens = time.perf_counter(), 0
    stamps: list[float] = []
    async for ids in stream(http, dialect, prompt, sampling):
        now = time.perf_counter()
        if ids and (not stamps or now - stamps[-1] > AT_ONCE_S):
            stamps.append(now)
        tokens += len(ids)
    if not stamps:
        raise Refused("an answer without a token")
    waits = tuple(b - a for a, b in pairwise(stamps))
    return Reply(tokens, stamps[0] - started, waits)
