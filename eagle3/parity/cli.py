"""`eagle3 parity`: do engines do with a run's draft what training says?"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from eagle3.arguments import number
from eagle3.process import alone, stop_on_signals
from eagle3.progress import Progress
from eagle3.run import Context, current, read_config

DEFAULT = "native,llamacpp"
NEEDED = ("resolve", "regenerate", "export")

EXPLAINED = """
Held-out prompts of the run go through the trainer's simulated chain, our own engine and the others;
acceptance must agree and greedy text must be the target's. By itself it is the stage, in the
engines of the recipe. With an option it tries the exported draft apart from the stages: RUN/parity/
gets parity.md and .json. Exit codes then: 0 parity, 1 a link broke."""

Run = Callable[[argparse.Namespace], int]


def add_parity(
    command: argparse.ArgumentParser, stage: Run, readable: Callable[[TextIO], io.TextIOBase]
) -> None:
    """Give the stage's command its second form: with an option it tries other engines or prompts.

    Args:
        readable: wraps a stream so that JSON lines become lines for people.
    """
    command.epilog = EXPLAINED
    add = command.add_argument
    add("--engines", metavar="NAMES", help=f"with commas between; {DEFAULT}")
    add("--prompts", type=number(int, 1), metavar="N", help="held-out prompts; the proof's")
    add("--max-new-tokens", type=number(int, 1), metavar="M", help="cap on an answer; the proof's")
    add("--plain", action="store_true", help="ask without the draft too, and compare the texts")

    def run(args: argparse.Namespace) -> int:
        if not (args.engines or args.prompts or args.max_new_tokens or args.plain):
            return stage(args)
        return _parity(args, readable(sys.stdout))

    command.set_defaults(run_command=run)


def _parity(args: argparse.Namespace, stream: io.TextIOBase) -> int:
    from eagle3.parity.report import page  # torch loads only here
    from eagle3.parity.stage import NAME, parity

    run: Path = args.run
    config = read_config(run)
    progress = Progress(NAME, run / "logs" / f"{NAME}.jsonl", stream)
    folder = run / NAME
    folder.mkdir(exist_ok=True)
    with stop_on_signals() as stop, alone(run, NAME, progress.info, stop):
        inputs = {stage: current(run, stage) for stage in NEEDED}
        ctx = Context(run, NAME, config, folder, inputs, progress, stop)
        names = [name.strip() for name in (args.engines or DEFAULT).split(",") if name.strip()]
        found = parity(ctx, names, args.prompts, args.max_new_tokens, args.plain)
    sys.stdout.write(f"\n{page(found)}\nparity: {folder / f'{NAME}.md'}\n")
    return 0 if found.holds else 1
