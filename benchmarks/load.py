"""What the service bears, on PostgreSQL and Redis from wheels, all on this machine.

    python -m benchmarks.load submit [--rate 50] [--seconds 60]
    python -m benchmarks.load read [--jobs 1000 100000] [--rate 20] [--requests 300]
    python -m benchmarks.load noop [--jobs 10000] [--workers 4] [--every 30]
    python -m benchmarks.load idle

`submit`: requests are due at fixed times, whether or not earlier ones were answered, and latency
counts from when a request was due; API and relay run. `read`: the routes that are used most, due at
fixed times as well, one route after another, with so many jobs in the tables. `noop`: jobs of one
stage that does nothing, in the worker; every few seconds a random worker is killed and started
again. `idle`: memory of API, relay and worker that wait. Full mode with a key. Prints the load of
the machine before and after and a Markdown table; exit code 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.load_figures import say
from benchmarks.load_idle import idle
from benchmarks.load_noop import noop
from benchmarks.load_read import read
from benchmarks.load_service import service
from benchmarks.load_submit import submit


def main() -> int:
    parser = argparse.ArgumentParser(description="What the service bears.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("submit")
    one.add_argument("--rate", type=float, default=50.0)
    one.add_argument("--seconds", type=float, default=60.0)
    one = commands.add_parser("read")
    one.add_argument("--jobs", type=int, nargs="+", default=[1000, 100_000])
    one.add_argument("--rate", type=float, default=20.0)
    one.add_argument("--requests", type=int, default=300)
    one = commands.add_parser("noop")
    one.add_argument("--jobs", type=int, default=10_000)
    one.add_argument("--workers", type=int, default=4)
    one.add_argument("--every", type=float, default=30.0, help="seconds between kills, about")
    commands.add_parser("idle")
    args = parser.parse_args()
    say(f"load of the machine: {_load()}")
    with service() as running:
        match args.command:
            case "submit":
                held = submit(running, args.rate, args.seconds)
            case "read":
                held = read(running, args.jobs, args.rate, args.requests)
            case "noop":
                held = noop(running, args.jobs, args.workers, args.every)
            case _:
                held = idle(running)
    say(f"load of the machine: {_load()}")
    return 0 if held else 1


def _load() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
