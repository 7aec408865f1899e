"""A training step of ours beside a plain one: tokens a second, and the most memory it takes.

    python -m benchmarks.training_step                   the shapes of SmolLM2-135M, length 2048
    python -m benchmarks.training_step --rows answers    with the rows of a regenerated set alone
    python -m benchmarks.training_step --largest         the longest sequence that fits 20 GiB

Both methods get the same network, sequence, float type and optimiser (`training_case.py`); what the
plain one does is in `plain_training.py`. A test holds their losses and gradients equal. Each works
in a process of its own, where its memory is measured; they take turns, one step each a round, the
first of the rounds in turn, after rounds that do not count. Ratios are taken within a round.

Two clocks are shown: the wall's, and the CPU's time of the process, which another load on the
machine changes little. Run it with one thread where others compute: then both mean the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

from benchmarks.longest import longest
from benchmarks.steps_apart import Apart, Measured
from benchmarks.training_case import Case, Method
from eagle3.provenance import hardware, versions

METHODS: tuple[Method, Method] = ("ours", "plain")


def main() -> None:
    args = _arguments()
    case = Case(
        length=args.length,
        draft_vocab=args.draft_vocab or (131_072 if args.largest else 32_000),
        steps=args.steps,
        rows=args.rows,
        precision=args.precision,
        device=args.device,
    )
    case = replace(case, **json.loads(args.shape))
    facts = {
        "case": asdict(case),
        "threads": args.threads,
        "load": os.getloadavg(),
        "hardware": hardware(),
        "versions": versions(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    if args.largest:
        for method in METHODS:
            sys.stdout.write(longest(case, method, args.limit_gib) + "\n")
        return
    sys.stdout.write(table(case, alternate(case, args.rounds, args.warm_up, args.threads)))
    sys.stdout.write(f"load at the end: {os.getloadavg()}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ours beside a plain training step.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--draft-vocab", type=int, help="32,000; 131,072 with --largest")
    parser.add_argument("--steps", type=int, default=7, help="training-time test")
    parser.add_argument("--rows", choices=("every", "answers"), default="every")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--limit-gib", type=float, default=20.0)
    parser.add_argument("--shape", default="{}", help="other fields of Case, as JSON")
    return parser.parse_args()


def alternate(case: Case, rounds: int, warm_up: int, threads: int) -> dict[Method, list[Measured]]:
    """Every method's measurements, round by round."""
    found: dict[Method, list[Measured]] = {method: [] for method in METHODS}
    with Apart(case, METHODS[0], threads) as ours, Apart(case, METHODS[1], threads) as plain:
        for n in range(-warm_up, rounds):
            for process in (ours, plain) if n % 2 else (plain, ours):
                measured = process.step()
                if n >= 0:
                    found[process.method].append(measured)
                sys.stderr.write(f"round {n + 1} of {rounds}: {process.method} {measured}\n")
    return found


def table(case: Case, found: dict[Method, list[Measured]]) -> str:
    """Medians and ranges, and what ours is to the plain one."""
    lines = [f"{'':8}{'tokens/s':>10}{'wall s':>24}{'CPU s':>24}{'peak':>11}{'of the steps':>14}"]
    for method, rounds in found.items():
        last = rounds[-1]
        lines.append(
            f"{method:8}{case.length / statistics.median(m.wall for m in rounds):10.1f}"
            f"{_spread([m.wall for m in rounds]):>24}{_spread([m.cpu for m in rounds]):>24}"
            f"{last.peak / 2**30:7.2f} GiB{(last.peak - last.before) / 2**30:10.2f} GiB"
        )
    ours, plain = (found[method] for method in METHODS)

    def ratio(value: Callable[[Measured], float]) -> str:
        return _spread([value(b) / value(a) for a, b in zip(ours, plain, strict=True)])

    memory = ours[-1].peak / plain[-1].peak
    shares = ", ".join(f"{share:.2f}" for share in ours[-1].supervised)
    lines += [
        f"ours is {ratio(lambda m: m.wall)} times as fast by the wall's clock, "
        f"{ratio(lambda m: m.cpu)} by the CPU's, at {memory:.2f} of the peak memory",
        f"supervised rows at each draft step: {shares}",
        f"losses of the last step: ours {ours[-1].loss:.6f}, plain {plain[-1].loss:.6f}",
    ]
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
