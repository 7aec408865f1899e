"""Strikes a running service at random, and counts what became of its jobs.

    python -m benchmarks.chaos [--minutes 5] [--seed 0] [--every 8]

PostgreSQL, Redis, an S3 server and MLflow are started from wheels, and API, relay and two workers
on them; jobs of stand-in stages are submitted all the time (`tests/faults/rig.py`). Every few
seconds a fault of `tests/faults/strikes.py` strikes, in rounds of all of them, each shuffled. Then
all is let settle, and a table is printed. Exit code 1: a job is stuck, its events have a gap, it
has two drafts or two versions, it left a process, or it failed for a reason that no fault gave it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.rig import Broken, Rig, rig
from tests.faults.strikes import STRIKES, TwoWinners, strikes_of

WAITING = 3
"""Jobs that have not ended, below which another one is submitted."""
REASONS = ("worker_lost", "disk_full")
"""What a job may have failed for: too many workers of it died, or the disk was full."""
UNTRUE = "failed for a reason that no fault gave"
RIVALS = "stage given to two workers"


@dataclass
class Tally:
    """What struck, and how the jobs ended."""

    struck: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    tried_again: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)

    def markdown(self) -> str:
        rows = sorted(self.struck.items())
        rows += [("jobs submitted", self.ends.total())]
        rows += [(f"jobs {end}", n) for end, n in sorted(self.ends.items())]
        rows += [(f"stages tried again: {why}", n) for why, n in sorted(self.tried_again.items())]
        rows += [(what, self.broken[what]) for what in (*Broken, UNTRUE, RIVALS)]
        return "\n".join(["| what | times |", "|---|---|", *(f"| {k} | {n} |" for k, n in rows)])


def storm(one: Rig, minutes: float, seed: int, every: float) -> Tally:
    """Submit and strike for so long, wait, and judge every job."""
    dice, tally, jobs = random.Random(seed), Tally(), [one.submit()]  # noqa: S311
    names = rounds(dice, strikes_of(one))
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        running = [job for job in jobs if not one.job(job).status.terminal]
        for _ in range(WAITING - len(running)):
            jobs.append(one.submit())
        time.sleep(dice.uniform(0.5, 1.5) * every)
        name = next(names)
        say(f"{name}; {len(jobs)} jobs so far")
        try:
            STRIKES[name](one, dice.choice(jobs[-WAITING:]))
        except TwoWinners as e:
            tally.broken[RIVALS] += 1
            say(str(e))
        tally.struck[name] += 1
    one.settle()
    for job in jobs:
        judge(one, job, tally)
    return tally


def rounds(dice: random.Random, strikes: list[str]) -> Iterator[str]:
    """Every fault before any comes again."""
    while True:
        dice.shuffle(strikes)
        yield from strikes


def judge(one: Rig, job: str, tally: Tally) -> None:
    """Add a job's end to the tally, and what is wrong with it."""
    found: list[str] = list(one.broken(job))
    ended = one.job(job)
    reason = str((ended.error or {}).get("reason"))
    failed = ended.status == "failed"
    tally.ends[f"failed: {reason}" if failed else str(ended.status)] += 1
    if failed and reason not in REASONS:
        found.append(UNTRUE)
    for event in one.events(job):
        if event.type == "stage.retry":
            tally.tried_again[(event.data or {})["reason"]] += 1
    for what in found:
        tally.broken[what] += 1
        say(f"{job}: {what}; {ended.error}")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="A service under faults at random.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between faults, about")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as one:
        tally = storm(one, args.minutes, args.seed, args.every)
    sys.stdout.write(tally.markdown() + "\n")
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
