"""What engines behind HTTP have in common: a server process, and how it is asked."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

from eagle3.engines.engine import Answer, Drafted, Sampling
from eagle3.engines.http import (
    Dialect,
    Metrics,
    Refused,
    answers,
    by_label,
    parse_metrics,
    total,
)
from eagle3.engines.process import Server

METRICS_S = 30.0


class Served(ABC):
    """A running server of an engine; see `Running`. What it has drafted, its engine says.

    Args:
        server: it answers already.
        url: its root.
        slots: requests in progress, at most.
    """

    def __init__(self, server: Server, url: str, dialect: Dialect, slots: int) -> None:
        self.server, self.dialect, self.slots = server, dialect, slots
        self.url: str | None = url
        self.log: Path | None = server.log
        self._root = url

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Answer]:
        try:
            return asyncio.run(answers(self._root, self.dialect, prompts, sampling, self.slots))
        except Refused as e:
            raise self.server.failed(f"refused: {e}") from None
        except (TimeoutError, httpx.TimeoutException):
            raise self.server.failed(
                f"did not finish an answer within {sampling.timeout_seconds:g} s"
            ) from None
        except httpx.TransportError as e:
            what = "died" if self.server.ended() else "cut the connection"
            raise self.server.failed(f"{what} while it answered ({type(e).__name__})") from None

    def scrape(self) -> Metrics:
        """What its `/metrics` says."""
        try:
            reply = httpx.get(f"{self._root}/metrics", timeout=METRICS_S, trust_env=False)
            return parse_metrics(reply.raise_for_status().text)
        except (httpx.HTTPError, ValueError) as e:
            raise self.server.failed(f"gave no metrics ({e})") from None

    @abstractmethod
    def metrics(self) -> Drafted:
        """See `Running`."""

    def stop(self) -> None:
        self.server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Counting(Served):
    """One whose `/metrics` has the counters that vLLM named, and llama.cpp after it."""

    counters: str
    """What their names begin with."""

    def metrics(self) -> Drafted:
        found = self.scrape()
        at = by_label(found, f"{self.counters}accepted_tokens_per_pos_total", "position")
        return Drafted(
            int(total(found, f"{self.counters}drafts_total")),
            int(total(found, f"{self.counters}draft_tokens_total")),
            int(total(found, f"{self.counters}accepted_tokens_total")),
            tuple(int(at[position]) for position in sorted(at, key=int)),
        )
