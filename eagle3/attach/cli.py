"""`eagle3 fingerprint`, `eagle3 probe`: what a checkpoint is, what drafts are worth on it."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from eagle3.arguments import number
from eagle3.errors import BadInput

Guarded = Callable[[str, Path, TextIO | io.TextIOBase], int]

PROBE_EXPLAINED = """
Decodes held-out prompts with the draft and without, and compares some of the text with what
transformers writes. TARGET is a directory as transformers saves it, whose prompts are the demo's
held-out ones, or a run directory with its own. Prints JSON; of a run without DRAFT it is the stage
of an attachment, with the drafts that its config names. Exit codes: 0 it fits and changes no token,
1 it does not."""


def register(commands: Any, guarded: Guarded) -> None:
    """Add both commands to an argparse collection of them.

    Args:
        guarded: runs a stage in a run directory.
    """
    command = commands.add_parser(
        "fingerprint", help="what a checkpoint is, and how far another is"
    )
    command.add_argument("target", type=Path, metavar="TARGET", help="a directory")
    command.add_argument("--against", type=Path, metavar="OTHER", help="a directory or fingerprint")
    command.set_defaults(run_command=_fingerprint)

    def run(args: argparse.Namespace) -> int:
        return _probe(args, guarded)

    command = commands.add_parser(
        "probe", help="what a draft is worth on a target", epilog=PROBE_EXPLAINED
    )
    add = command.add_argument
    add("where", type=Path, metavar="RUN_OR_TARGET", help="a run directory or a target's")
    add("draft", type=Path, nargs="?", metavar="DRAFT", help="a directory in the official layout")
    add("--prompts", type=number(int, 1), default=16, metavar="N", help="held-out prompts")
    add("--max-new-tokens", type=number(int, 1), default=64, metavar="M", help="cap on an answer")
    add("--depth", type=number(int, 1), default=3, metavar="D", help="draft tokens of a round")
    command.set_defaults(run_command=run)


def _fingerprint(args: argparse.Namespace) -> int:
    from eagle3.attach.fingerprint import (
        Fingerprint,
        distance,
        fingerprint,
    )  # torch loads only here

    here = fingerprint(args.target)
    found = here.model_dump()
    if args.against is not None:
        folder = args.against.is_dir()
        other = fingerprint(args.against) if folder else Fingerprint.read(args.against)
        found["distance"] = distance(here, other)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


def _probe(args: argparse.Namespace, guarded: Guarded) -> int:
    if args.draft is None:
        if not _is_run(args.where):
            raise BadInput(f"{args.where} is no run directory", "name a draft, too")
        return guarded("probe", args.where, sys.stdout)
    from eagle3.attach.given import probe_given  # torch loads only here
    from eagle3.config import ProbeConfig, ProbedDraft

    draft = ProbedDraft(id=args.draft.name, path=str(args.draft), depth=args.depth)
    config = ProbeConfig(drafts=(draft,), prompts=args.prompts, max_new_tokens=args.max_new_tokens)
    summary = probe_given(args.where, config, is_run=_is_run(args.where))
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    [one] = summary["probed"]
    return 0 if one["fits"] and one["lossless"] else 1


def _is_run(folder: Path) -> bool:
    """Whether a directory is a run's: a target's has a config.json, too."""
    try:
        return "recipe" in json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
