"""The GET routes that are used most, with few and with many jobs in the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.load_client import Client
from benchmarks.load_figures import HEAD, bounded, growth, open_loop, percentile, row, say, table
from benchmarks.load_service import Service, said
from benchmarks.load_tables import fill

BOUND_MS = 50.0
GROWTH = 2.0
"""How many times as slow the largest tables may make a route."""
FLOOR_MS = 10.0
"""A route below this may grow as it likes: a scheduler's tick is more than its own time."""


def read(one: Service, sizes: Sequence[int], rate: float, requests: int) -> bool:
    """Whether with the largest tables every route is below the bound, and none grew too much."""
    api = one.api()
    found: dict[str, list[list[float]]] = {}
    filled = 0
    for size in sizes:
        fill(one, filled, size)
        filled = size
        before = one.spent([api])
        for name, path in _routes(one).items():
            found.setdefault(name, []).append(asyncio.run(_ask(one, path, rate, requests)))
        after = one.spent([api])
        taken = said(before, after, requests * len(found))
        say(f"{size:,} jobs: CPU time of one request, ms: {taken}")
    api.stop()
    rows = [
        row(f"`{name}`, {size:,} jobs", late)
        for name, by_size in found.items()
        for size, late in zip(sizes, by_size, strict=True)
    ]
    say(table(HEAD, rows))
    slowest = max(found, key=lambda name: percentile(found[name][-1], 99))
    grown = {n: growth(v[0], v[-1]) for n, v in found.items() if percentile(v[-1], 99) > FLOOR_MS}
    held = bounded(f"slowest p99, `{slowest}`", percentile(found[slowest][-1], 99), BOUND_MS, "ms")
    for name, ratio in grown.items():
        held = bounded(f"growth of `{name}`", ratio, GROWTH, "times") and held
    return held


def _routes(one: Service) -> dict[str, str]:
    with one.client() as client:
        page = client.get("/jobs", params={"limit": 20}).raise_for_status().json()
        job = page["data"][10]["id"]
        draft = client.get("/drafts").raise_for_status().json()["data"][10]["id"]
    return {
        "/jobs": "/jobs?limit=20",
        "/jobs?after=": f"/jobs?limit=20&after={page['next']}",
        "/jobs?status=": "/jobs?limit=20&status=failed",
        "/jobs?status=, none": "/jobs?limit=20&status=running",
        "/jobs?base_model=": "/jobs?limit=20&base_model=org/model-7",
        "/jobs?label.team=": "/jobs?limit=20&label.team=3",
        "/jobs?label.team=, none": "/jobs?limit=20&label.team=none",
        "/jobs/{id}": f"/jobs/{job}",
        "/jobs/{id}/events": f"/jobs/{job}/events?limit=100",
        "/jobs/{id}/metrics": f"/jobs/{job}/metrics",
        "/drafts": "/drafts?limit=20",
        "/drafts?base_model=": "/drafts?limit=20&base_model=org/model-7",
        "/drafts/{id}": f"/drafts/{draft}",
        "/usage": "/usage",
        "/recipes": "/recipes",
    }


async def _ask(one: Service, path: str, rate: float, requests: int) -> list[float]:
    """Latencies of one route, its first answer left out."""
    async with Client(one.url, one.headers, most=16) as client:

        async def ask(_: int) -> None:
            await client.ask(path)

        await ask(0)
        return await open_loop(rate, requests, ask)
