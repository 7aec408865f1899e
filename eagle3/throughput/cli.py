"""`eagle3 throughput`: a draft under load in a serving engine, and the settings for each load."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eagle3.errors import BadInput

EXPLAINED = """
TARGET and DRAFT are directories, a draft in the official layout; a run directory stands for its own
target and draft: eagle3 throughput RUN. Every turn measures each draft length under each load, the
target alone among them. A cost model that has seen a few of these cells predicts the others, and
what it calls best is measured. The finding: DIR/throughput.md, .json (with its schema), .svg and
.png, every run in DIR/samples.jsonl, and DIR/settings/ with ready files for vLLM, SGLang and
llama.cpp. docs/throughput.md explains all of it."""


def register(commands: Any) -> None:
    """Add the command to an argparse collection of them."""
    command = commands.add_parser(
        "throughput", help="a draft under load, and the settings for each load", epilog=EXPLAINED
    )
    add = command.add_argument
    add("target", type=Path, metavar="TARGET_OR_RUN")
    add("draft", type=Path, metavar="DRAFT", nargs="?")
    add("--engine", default="llamacpp", help="native, llamacpp, vllm or sglang; llamacpp")
    add("--concurrency", type=_numbers(int, 1), default=[1, 2, 4, 8, 16, 32, 64], metavar="N,…",
        help="answers in progress; 1,2,4,8,16,32,64")  # fmt: skip
    add("--tokens", type=_numbers(int, 0), default=[0, 1, 2, 3, 5], metavar="K,…",
        help="draft lengths; 0,1,2,3,5")  # fmt: skip
    add("--rate", type=_numbers(float, 0.001), default=[], metavar="R,…",
        help="also an open loop of so many requests a second")  # fmt: skip
    add("--rounds", type=int, default=5, metavar="N", help="turns; 5")
    add("--few", action="store_true", help="measure what the cost model needs, and its choices")
    add("--together", action="store_true", help="keep the servers of all draft lengths loaded")
    add("--prompts", default="demo", metavar="FILE", help="prompts or task files; demo")
    add("--output-tokens", type=int, default=64, metavar="L", help="of each answer; 64")
    add("--waves", type=int, default=4, metavar="N", help="requests for each answer in progress; 4")
    add("--generator", choices=("auto", "own"), default="auto",
        help="auto: the engine's own where it has one; own: this package's")  # fmt: skip
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    add("--context", type=int, default=1024, metavar="N", help="tokens of prompt and answer; 1024")
    add("--threads", type=int, metavar="N", help="CPU threads of the engine")
    add("--memory-gib", type=float, default=1.0, metavar="G", help="for keys and values; 1")
    add("--p-min", type=float, default=0.0, metavar="P", help="llama.cpp: stop a draft below this")
    add("--engine-arg", action="append", default=[], metavar="ARG", help="passed on to the engine")
    add("--out", type=Path, default=Path("throughput"), metavar="DIR", help="throughput")
    command.set_defaults(run_command=_throughput)


def _numbers(kind: type[int] | type[float], least: float) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        values = sorted({kind(part) for part in text.split(",") if part.strip()})
        if not values or values[0] < least:
            raise argparse.ArgumentTypeError(f"{text}: expected numbers of {least:g} or more")
        return values

    numbers.__name__ = f"list of {kind.__name__}"  # argparse names it where the text is none
    return numbers


def _throughput(args: argparse.Namespace) -> int:
    from eagle3.engines.engine import Settings  # torch and matplotlib load only here
    from eagle3.engines.known import engine
    from eagle3.target import load_tokenizer
    from eagle3.throughput.lab import Plan
    from eagle3.throughput.prompts import read_prompts
    from eagle3.throughput.report import NAME, write
    from eagle3.throughput.run import run
    from eagle3.throughput.study import Grid

    _check(args)
    target, draft = _pair(args)
    tokenizer = load_tokenizer(target)
    room = args.context - args.output_tokens - max(args.tokens)
    asked = read_prompts(args.prompts, tokenizer, room)
    grid = Grid(tuple(args.concurrency), tuple(args.tokens), tuple(args.rate))
    settings = Settings(
        dtype=args.dtype,
        context=args.context,
        slots=max(args.concurrency),
        threads=args.threads,
        memory_gib=args.memory_gib,
        p_min=args.p_min,
        extra=tuple(args.engine_arg),
    )
    plan = Plan(asked.ids, args.output_tokens, args.rounds, args.waves, together=args.together)
    found = run(
        engine(args.engine), target, draft, settings, plan, grid, args.out,
        whole=not args.few, source=asked.source, tokenizer=tokenizer,
        own=args.generator == "own", tell=_tell,
    )  # fmt: skip
    sys.stdout.write(f"{write(found, args.out)}\nthroughput: {args.out / f'{NAME}.md'}\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.tokens[-1] == 0:
        raise BadInput("--tokens names no draft length", "for instance: --tokens 0,1,2,3,5")
    if args.tokens[0] != 0:
        args.tokens.insert(0, 0)  # the target alone is what all else is compared with
    for name, least in (("rounds", 1), ("output_tokens", 2), ("waves", 1), ("context", 8)):
        if getattr(args, name) < least:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} {getattr(args, name)}: expected {least} or more")


def _pair(args: argparse.Namespace) -> tuple[Path, Path]:
    """The directories of target and draft: named both, or those of a run."""
    from eagle3.data.records import read_json
    from eagle3.run import current

    if args.draft is not None:
        folders: Sequence[Path] = (args.target, args.draft)
    else:
        local = current(args.target, "resolve") / "local.json"
        where = read_json(local)["path"] if local.is_file() else ""
        folders = (Path(where), current(args.target, "export") / "draft")
    for folder in folders:
        if not (folder / "config.json").is_file():
            raise BadInput(
                f"{folder} is no directory of a model: it has no config.json",
                "name the directories of target and draft, or a run whose export has run",
            )
    return folders[0], folders[1]


def _tell(text: str) -> None:
    sys.stderr.write(f"throughput: {text}\n")
