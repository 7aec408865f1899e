"""`eagle3 diagnose`: why a draft accepts too little."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from eagle3.arguments import number
from eagle3.errors import BadInput

EXPLAINED = """
The target answers greedily, once; then the draft is measured as it is and with each cause
corrected, along those answers. TARGET is a directory as transformers saves it, DRAFT one with
config.json and model.safetensors, in any state. Exit codes: 0 nothing wrong, 1 a cause is named,
6 acceptance is low and no cause was found."""


def register(commands: Any) -> None:
    """Add the command to an argparse collection of them."""
    command = commands.add_parser(
        "diagnose", help="why a draft accepts too little", epilog=EXPLAINED
    )
    add = command.add_argument
    add("target", type=Path, metavar="TARGET", help="the target that it is served with")
    add("draft", type=Path, metavar="DRAFT", help="the draft")
    add("--engine", metavar="NAME", help="serve it with this engine too, and compare")
    add("--prompts", metavar="FILE", help="your prompts; the demo's held-out ones")
    add("--heldout", default="demo", metavar="FILE", help="prompts like those of its training")
    more = "another target or revision that it may have been trained for; repeatable"
    add("--other-target", action="append", type=Path, default=[], metavar="DIR", help=more)
    add("--flags", default="", metavar="LINE", help="the engine's command line, as you start it")
    add("--expected", type=float, default=1.3, metavar="TAU", help="acceptance length to expect")
    add("--count", type=number(int, 1), default=16, metavar="N", help="prompts")
    add("--max-new-tokens", type=number(int, 1), default=64, metavar="M", help="cap on an answer")
    add("--depth", type=number(int, 1), default=3, metavar="D", help="draft tokens of a round")
    add("--json", type=Path, metavar="FILE", help="write the diagnosis there, too")
    command.set_defaults(run_command=_diagnose)


def _diagnose(args: argparse.Namespace) -> int:
    from eagle3.diagnose.examine import Asked, examine  # torch loads only here
    from eagle3.diagnose.report import page

    for folder in (args.target, args.draft, *args.other_target):
        if not (folder / "config.json").is_file():
            raise BadInput(f"{folder} has no config.json", "name a directory that has one")
    asked = Asked(
        prompts=args.prompts,
        heldout=args.heldout,
        others=tuple(args.other_target),
        flags=args.flags,
        engine=args.engine,
        expected=args.expected,
        count=args.count,
        max_new_tokens=args.max_new_tokens,
        depth=args.depth,
    )
    found = examine(args.target, args.draft, asked)
    sys.stdout.write(page(found))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found.record(), indent=1) + "\n")
        sys.stdout.write(f"diagnosis: {args.json}\n")
    return found.exit_code
