"""Submissions at a fixed rate, each under an idempotency key; some are sent twice at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from sqlalchemy import func, select

from benchmarks.load_client import Client
from benchmarks.load_figures import HEAD, bounded, open_loop, percentile, row, say, table
from benchmarks.load_service import RELAY, SPEC, Service, said
from jobs.models import IdempotencyRecord, Job, JobEvent, Outbox, Stage
from jobs.service import ALL_STAGES
from tests.servers import wait_until

BOUND_MS = 100.0
TWICE = 50
"""Every so many submissions, one is repeated while it is still in flight."""


def submit(one: Service, rate: float, seconds: float) -> bool:
    """Whether the 99th percentile is below the bound, and nothing was lost or doubled."""
    parts = [one.api(), one.part("relay", *RELAY)]
    with one.client() as client:
        client.post("/jobs", json=SPEC).raise_for_status()  # imports and first connections
    wait_until(lambda: _announced(one), 120, "the relay tells of a job")
    count = round(rate * seconds)
    before = one.spent(parts)
    late, answers = asyncio.run(_all(one, rate, count))
    after = one.spent(parts)
    for part in parts:
        part.stop()
    say(table(HEAD, [row(f"submit, {rate:g} a second", late)]))
    say(f"CPU time of one, ms: {said(before, after, count)}")
    whole = _whole(one, answers, count)
    return bounded("p99", percentile(late, 99), BOUND_MS, "ms") and whole


async def _all(one: Service, rate: float, count: int) -> tuple[list[float], list[tuple[int, str]]]:
    """Latencies, and for each answer the number of its submission and the job's id."""
    answers: list[tuple[int, str]] = []
    body = json.dumps(SPEC).encode()
    headers = {**one.headers, "Content-Type": "application/json"}
    async with Client(one.url, headers, most=64) as client:

        async def send(number: int) -> None:
            own = {"Idempotency-Key": f"load-{number}"}
            answer = await client.ask("/jobs", "POST", body, own)
            answers.append((number, json.loads(answer)["id"]))

        async def ask(number: int) -> None:
            copies = 2 if number % TWICE == 0 else 1
            await asyncio.gather(*(send(number) for _ in range(copies)))

        return await open_loop(rate, count, ask), answers


def _announced(one: Service) -> bool:
    with one.db.read() as session:
        return session.scalar(select(Outbox.id).where(Outbox.sent_at.is_not(None))) is not None


def _whole(one: Service, answers: Sequence[tuple[int, str]], count: int) -> bool:
    """Whether there is one job with all that belongs to it for each submission.

    The relay adds rows of its own meanwhile: it notes what a job waits for, and announces again
    what has waited long. So of the events those count that a submission writes, and of the hints
    the jobs that have one.
    """
    jobs, made = dict(answers), {}
    queries = {
        "jobs": (select(func.count()).select_from(Job), 1),
        "stages": (select(func.count()).select_from(Stage), len(ALL_STAGES)),
        "`job.queued`": (select(func.count()).where(JobEvent.type == "job.queued"), 1),
        "jobs announced": (select(func.count(Outbox.job_id.distinct())), 1),
    }
    with one.db.read() as session:
        for name, (query, each) in queries.items():
            made[name] = (session.scalar(query) or 0) - each  # without the first submission
        records = select(IdempotencyRecord.key, IdempotencyRecord.job_id)
        kept = {int(key.removeprefix("load-")): job for key, job in session.execute(records)}
    say(
        f"{count} submissions, {len(answers)} answers, {len(set(jobs.values()))} jobs in them; "
        f"rows: {', '.join(f'{n} {name}' for name, n in made.items())}"
    )
    due = {name: count * each for name, (_, each) in queries.items()}
    same = set(answers) == set(jobs.items()) == set(kept.items())
    return same and len(set(jobs.values())) == count and made == due
