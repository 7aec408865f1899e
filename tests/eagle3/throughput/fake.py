"""An engine whose rounds take exactly the time that a known law says.

`Law` says it. `LawfulServer` is a real HTTP server that sleeps so long, streams token ids and
counts what it accepts, as vLLM does; `sample_of` is what it would give with no time spent.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from eagle3.bench.metrics import Reply
from eagle3.engines.engine import Answer, Drafted, Sampling, Settings
from eagle3.engines.http import answers, by_label, openai, parse_metrics, total
from eagle3.throughput.cost import Acceptance
from eagle3.throughput.load import Heard, Load
from eagle3.throughput.samples import Cell, Sample, sample


@dataclass(frozen=True)
class Law:
    """Seconds of a round, and how often drafted tokens are accepted."""

    fixed: float = 0.004
    drafted: float = 0.0006
    drafting: float = 0.0007
    sequences: float = 0.00003
    rows: float = 0.0
    beyond: float = 0.00004
    knee: int = 64
    first: float = 0.010
    first_each: float = 0.002
    at: tuple[float, ...] = (0.6, 0.35, 0.2, 0.12, 0.07)

    def round_s(self, n: int, k: int) -> float:
        rows = n * (k + 1)
        seconds = self.fixed + self.drafted * k + self.drafting * (k > 0) + self.sequences * n
        return seconds + self.rows * rows + self.beyond * max(0, rows - self.knee)

    def tau(self, k: int) -> float:
        return 1 + sum(self.at[:k])

    def tokens_per_s(self, n: int, k: int, length: int) -> float:
        first = self.first + self.first_each * n
        return n * length / (first + (length - 1) * self.round_s(n, k) / self.tau(k))

    def relative(self, n: int, k: int, length: int) -> float:
        return self.tokens_per_s(n, k, length) / self.tokens_per_s(n, 0, length)


def sample_of(law: Law, turn: int, cell: Cell, length: int, noise: float = 1.0) -> Sample:
    """One run of a cell, exactly by the law, but for a factor on its time."""
    n, k = cell.concurrency or 1, cell.drafted
    load = Load(4 * n, n)
    seconds = load.requests * length / law.tokens_per_s(n, k, length) * noise
    reply = Reply(length, law.first + law.first_each * n, (seconds / 4 / (length - 1),) * 3)
    rounds = 10_000 if k else 0
    at = tuple(round(a * rounds) for a in law.at[:k])
    counted = Drafted(rounds, rounds * k, sum(at), at)
    return sample(turn, cell, load, Heard([reply] * load.requests, seconds), counted)


def acceptance(law: Law) -> dict[int, Acceptance]:
    return {1: Acceptance(law.at)}


@dataclass
class LawfulEngine:
    """Servers in threads of this process; `started` has what each was started with."""

    law: Law
    name: str = "lawful"
    started: list[Settings] = field(default_factory=list)
    running: list[LawfulServer] = field(default_factory=list)

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return "1.0"

    def start(
        self, target: Path, draft: Path | None, settings: Settings, work: Path
    ) -> LawfulServer:
        self.started.append(settings)
        self.running.append(LawfulServer(self.law, settings.draft_tokens if draft else 0))
        return self.running[-1]


@dataclass
class _Sequence:
    left: int
    given: asyncio.Queue[int]
    """Tokens of each round; 0 at the end."""


class LawfulServer:
    """One running server of a `LawfulEngine`."""

    log: Path | None = None

    def __init__(self, law: Law, drafted: int) -> None:
        self.law, self.drafted = law, drafted
        self.dialect = openai("lawful")
        self.bodies: list[dict[str, Any]] = []
        self.most = 0  # answers in progress
        self._counts = [0] * (drafted + 1)
        self._rounds, self._random = 0, random.Random(0)
        self._active: list[_Sequence] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server, self._decoder = asyncio.run_coroutine_threadsafe(
            self._listen(), self._loop
        ).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Answer]:
        return asyncio.run(answers(self.url, self.dialect, prompts, sampling, len(prompts)))

    def metrics(self) -> Drafted:
        found = parse_metrics(httpx.get(f"{self.url}/metrics").text)
        at = by_label(found, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
        return Drafted(
            int(total(found, "vllm:spec_decode_num_drafts_total")),
            int(total(found, "vllm:spec_decode_num_draft_tokens_total")),
            int(total(found, "vllm:spec_decode_num_accepted_tokens_total")),
            tuple(int(at[str(i)]) for i in range(len(at))),
        )

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> LawfulServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _listen(self) -> tuple[asyncio.Server, asyncio.Task[None]]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return server, asyncio.create_task(self._decode())

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _decode(self) -> None:
        while True:
            active = list(self._active)
            n = len(active)
            self.most = max(self.most, n)
            await asyncio.sleep(self.law.round_s(n, self.drafted) if n else 0.001)
            for sequence in active:
                tokens = min(1 + self._accept(), sequence.left)
                sequence.left -= tokens
                sequence.given.put_nowait(tokens)
                if not sequence.left:
                    self._active.remove(sequence)
                    sequence.given.put_nowait(0)

    def _accept(self) -> int:
        """Tokens accepted of one draft; the law's shares are those of the first n together."""
        draw, held = self._random.random(), 0
        while held < self.drafted and draw < self.law.at[held]:
            held += 1
        self._rounds += self.drafted > 0
        for position in range(held):
            self._counts[position] += 1
        return held

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status = "HTTP/1.1 200 OK\r\nConnection: close\r\n"
        if head.startswith("GET /metrics"):
            writer.write(f"{status}Content-Type: text/plain\r\n\r\n{self._prometheus()}".encode())
        else:
            size = next(x for x in head.lower().splitlines() if x.startswith("content-length"))
            body = json.loads(await reader.readexactly(int(size.split(":")[1])))
            writer.write(f"{status}Content-Type: text/event-stream\r\n\r\n".encode())
            await self._stream(body, writer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)

        def event(count: int) -> bytes:
            choice = {"text": "x" * count, "token_ids": [7] * count}
            return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()

        await asyncio.sleep(self.law.first)
        writer.write(event(1))
        if body["max_tokens"] > 1:
            sequence = _Sequence(body["max_tokens"] - 1, asyncio.Queue())
            self._active.append(sequence)
            while count := await sequence.given.get():
                writer.write(event(count))
                await writer.drain()
        usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"]}
        writer.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        writer.write(b"data: [DONE]\n\n")

    def _prometheus(self) -> str:
        name, counts = "vllm:spec_decode_num", self._counts[: self.drafted]
        lines = [
            f"{name}_drafts_total {self._rounds}",
            f"{name}_draft_tokens_total {self._rounds * self.drafted}",
            f"{name}_accepted_tokens_total {sum(counts)}",
            *(
                f'{name}_accepted_tokens_per_pos_total{{position="{i}"}} {count}'
                for i, count in enumerate(counts)
            ),
        ]
        return "\n".join(lines) + "\n"
