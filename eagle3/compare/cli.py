"""`eagle3 compare`: drafting methods side by side, as in the papers' tables."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from eagle3.arguments import number
from eagle3.config import RunConfig, explain, load_recipe
from eagle3.errors import BadInput
from eagle3.process import alone, stop_on_signals
from eagle3.progress import Progress
from eagle3.run import Context, RunStage, current, make_run, read_config

NEEDED = ("resolve", "prepare", "regenerate", "extract")

EXPLAINED = """
Methods with parameters are trained on RUN's features, for --budget seconds or --budget-tokens each
(cached in RUN/compare/); then all answer the same questions, in random order. The finding:
RUN/compare/compare.md, .json (with its schema), .svg and .png. A comparison that is stopped goes
on."""


def register(
    commands: Any, run_stage: RunStage, readable: Callable[[TextIO], io.TextIOBase]
) -> None:
    """Add the command to an argparse collection of them.

    Args:
        readable: wraps a stream so that JSON lines become lines for people.
    """
    command = commands.add_parser(
        "compare", help="drafting methods on the same questions", epilog=EXPLAINED
    )
    add = command.add_argument
    add("what", metavar="TARGET_OR_RUN", help="a run directory, or a target: demo, org/name, …")
    add("--methods", default="all", help="all, or names with commas between")
    add("--tasks", default="demo", help="demo, task files, directories, hub data sets, with commas")
    add("--prompts", type=number(int, 1), default=8, metavar="N", help="questions of each task")
    # An answer of one token has no decode phase.
    add("--max-new-tokens", type=number(int, 2), default=64, metavar="M", help="cap on an answer")
    add("--temperature", type=number(float, 0), default=0.0, metavar="T", help="0 is greedy")
    add("--budget", type=number(float, 1), metavar="SECONDS", help="of each training; 60 s")
    add("--budget-tokens", type=number(int, 1), metavar="N", help="each training may see so many")
    add("--run", type=Path, metavar="DIR", help="run directory for a TARGET; compare-NAME")
    add("--recipe", help="recipe for a TARGET; quick")

    def run(args: argparse.Namespace) -> int:
        return _compare(args, run_stage, readable(sys.stdout))

    command.set_defaults(run_command=run)


def _compare(args: argparse.Namespace, run_stage: RunStage, stream: io.TextIOBase) -> int:
    from eagle3.bench.tasks import read_tasks  # torch and matplotlib load only here
    from eagle3.compare.compare import Settings, compare
    from eagle3.compare.methods import named
    from eagle3.compare.report import NAME, write
    from eagle3.drafters.trainer import Budget

    seconds = 60.0 if args.budget is args.budget_tokens is None else args.budget
    settings = Settings(
        named(args.methods),
        args.prompts,
        args.max_new_tokens,
        args.temperature,
        Budget(seconds, args.budget_tokens),
    )
    tasks = read_tasks(args.tasks)
    run = _run_directory(args)
    for stage in () if _has_features(run) else NEEDED:
        code = run_stage(stage, run, stream)
        if code:
            return code
    progress = Progress("compare", run / "logs" / "compare.jsonl", stream)
    folder = run / "compare"
    folder.mkdir(exist_ok=True)
    with stop_on_signals() as stop, alone(run, "compare", progress.info, stop):
        inputs = {stage: current(run, stage) for stage in NEEDED}
        ctx = Context(run, "compare", read_config(run), folder, inputs, progress, stop)
        text = write(compare(ctx, tasks, settings), folder)
    sys.stdout.write(f"{text}\ncompare: {folder / f'{NAME}.md'}\n")
    return 0


def _has_features(run: Path) -> bool:
    try:
        return all(current(run, stage) for stage in NEEDED)
    except BadInput:  # some stage has not run
        return False


def _run_directory(args: argparse.Namespace) -> Path:
    """The run that is named, or one that is made for the target that is named."""
    run = Path(args.what)
    if run.is_dir():
        if args.run or args.recipe:
            raise BadInput(
                f"{run} is a run directory, with a recipe of its own",
                "leave out --run and --recipe: they make one for a target",
            )
        return run
    try:
        recipe = load_recipe(args.recipe or "quick")
        config = RunConfig(target=args.what, prompts=recipe.prompts, recipe=recipe)
    except ValidationError as e:
        raise BadInput(explain(e), "name a run directory that exists, or a target") from None
    except ValueError as e:
        raise BadInput(f"--recipe: {e}", "name one of these, or a YAML file") from None
    name = re.sub(r"[^A-Za-z0-9.]+", "-", args.what).strip("-.")
    folder: Path = args.run or Path(f"compare-{name}")
    make_run(folder, config, f"name it as RUN: eagle3 compare {folder}, or give another --run")
    return folder
