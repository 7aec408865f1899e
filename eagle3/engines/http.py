"""Prompts over HTTP: token ids out and in, streamed, many at once; and Prometheus' text.

Every server here is one that this package started, so nothing is tried again: one that does not
answer has failed. Servers that others run are asked by `eagle3/data/engines/client.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from eagle3.engines.engine import Answer, Sampling

T = TypeVar("T")

PLAIN_SAMPLING: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""The target's own distribution. Said in full, for servers take other defaults from a model's
generation config (vLLM) or have their own (llama.cpp: top-k 40, top-p 0.95, min-p 0.05)."""

MAX_SEED = 2**31
"""llama.cpp reads 32 bits of a seed."""

CONNECT_S = 10.0
MESSAGE_CHARS = 500


class Refused(Exception):
    """The server answers, and says no; or it ends a stream without its last event."""


@dataclass(frozen=True)
class Dialect:
    """How one kind of server is asked for an answer, and how its stream is read."""

    path: str
    body: Callable[[Sequence[int], Sampling], dict[str, Any]]
    tokens: Callable[[dict[str, Any]], Sequence[int]]
    """The token ids in one event of the stream."""


def openai(model: str) -> Dialect:
    """`/v1/completions` of a server that takes and gives token ids (vLLM, SGLang)."""

    def body(prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": sampling.max_tokens,
            "return_token_ids": True,
            **sampled(sampling),
        }

    def tokens(event: dict[str, Any]) -> Sequence[int]:
        return [i for choice in event["choices"] for i in choice.get("token_ids") or ()]

    return Dialect("/v1/completions", body, tokens)


def sampled(sampling: Sampling) -> dict[str, Any]:
    """The part of a request's body that says how tokens are drawn."""
    said = {
        **PLAIN_SAMPLING,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or PLAIN_SAMPLING["top_k"],
        "ignore_eos": sampling.ignore_eos,
    }
    return said if sampling.seed is None else {**said, "seed": sampling.seed % MAX_SEED}


def client(url: str, concurrency: int, timeout_s: float) -> httpx.AsyncClient:
    """A client for `ask`: so many requests at once, each part of an answer within `timeout_s`."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
        # llama.cpp closes a connection after 100 requests or 5 idle seconds; the next one is lost.
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=0),
        trust_env=False,  # it is on this machine; no proxy lies between
    )


async def answers(
    url: str,
    dialect: Dialect,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    concurrency: int,
) -> list[Answer]:
    """All answers, in the order of the prompts.

    Raises:
        Refused, TimeoutError, httpx.TransportError: see `ask`.
    """
    free = asyncio.Semaphore(concurrency)

    async def one(http: httpx.AsyncClient, prompt: Sequence[int]) -> Answer:
        async with free:
            return await ask(http, dialect, prompt, sampling)

    async with client(url, concurrency, sampling.timeout_seconds) as http:
        return await together([one(http, prompt) for prompt in prompts])


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order; the first failure, with the others cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def ask(
    http: httpx.AsyncClient, dialect: Dialect, prompt: Sequence[int], sampling: Sampling
) -> Answer:
    """One answer.

    Raises:
        Refused: the server says no, or gives a stream that cannot be read.
        TimeoutError: it took longer than `sampling.timeout_seconds`.
        httpx.TransportError: the connection was cut.
    """
    tokens: list[int] = []
    started, first = time.perf_counter(), None
    async with asyncio.timeout(sampling.timeout_seconds):
        async for ids in stream(http, dialect, prompt, sampling):
            if first is None and ids:
                first = time.perf_counter() - started
            tokens += ids
    return Answer(tuple(tokens), time.perf_counter() - started, first)


async def stream(
    http: httpx.AsyncClient, dialect: Dialect, prompt: Sequence[int], sampling: Sampling
) -> AsyncIterator[Sequence[int]]:
    """Token ids as they come: those of one round together where the server gives them so.

    Raises:
        Refused: see `ask`.
    """
    body = dialect.body(prompt, sampling) | {"stream": True}
    async with http.stream("POST", dialect.path, json=body) as reply:
        if reply.status_code != httpx.codes.OK:
            said = " ".join((await reply.aread()).decode(errors="replace").split())
            raise Refused(f"status {reply.status_code}: {said[:MESSAGE_CHARS]}")
        async for line in reply.aiter_lines():
            kind, _, data = line.partition(":")
            if kind == "error" or (kind == "data" and data.lstrip().startswith('{"error"')):
                raise Refused(data.strip()[:MESSAGE_CHARS])
            if kind == "data" and data.strip() != "[DONE]":
                try:
                    yield dialect.tokens(json.loads(data))
                except (KeyError, TypeError, ValueError) as e:
                    raise Refused(f"an event that cannot be read ({e!r}): {data[:200]}") from None


# --- Prometheus -----------------------------------------------------------------------------

Labels = dict[str, str]
Metrics = dict[str, list[tuple[Labels, float]]]
"""Of each name, its samples."""

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse_metrics(text: str) -> Metrics:
    """Samples of Prometheus' text format.

    Raises:
        ValueError: a line that is none.
    """
    found: Metrics = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"not a line of Prometheus' text format: {line!r}")
        name, labels, value = match.groups()
        found.setdefault(name, []).append((_labels(labels or ""), float(value)))
    return found


def total(metrics: Metrics, name: str) -> float:
    """The sum of a name's samples; 0 where there is none."""
    return sum(value for _, value in metrics.get(name, ()))


def by_label(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """A name's samples, added up by the value of one label."""
    sums: dict[str, float] = {}
    for labels, value in metrics.get(name, ()):
        sums[labels[label]] = sums.get(labels[label], 0.0) + value
    return sums


def _labels(text: str) -> Labels:
    def plain(value: str) -> str:
        return re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), value)

    return {name: plain(value) for name, value in _LABEL.findall(text)}
