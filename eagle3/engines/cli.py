"""`eagle3 engines`: which engines there are, which are installed; `eagle3 engines install NAME`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from eagle3.engines.environments import Environment, engines_root, how_to_install, installed
from eagle3.engines.known import ABOUT, ENGINES, tested_range, untested


def register(commands: Any) -> None:
    """Add the command to the subparsers of `eagle3`."""
    command = commands.add_parser("engines", help="list the serving engines, or install one")
    command.set_defaults(run_command=_list)
    actions = command.add_subparsers(metavar="ACTION")
    install = actions.add_parser("install", help="make an engine's own environment")
    install.add_argument("name", metavar="NAME", choices=ENGINES, help=", ".join(ENGINES))
    install.add_argument("--again", action="store_true", help="remove what is there first")
    install.set_defaults(run_command=_install)


def _list(_: argparse.Namespace) -> int:
    rows = [("engine", "installed", "tested", "")]
    notes = []
    for name in ENGINES:
        version = installed(name)
        rows.append((name, version or "no", tested_range(name) or "", ABOUT[name]))
        if version is None:
            notes.append(f"{name} is not installed: {how_to_install(name)}")
        elif (said := untested(name, version)) is not None:
            notes.append(f"warning: {said}")
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        sys.stdout.write("  ".join([*cells, row[3]]).rstrip() + "\n")
    sys.stdout.write("".join(f"\n{note}" for note in notes) + "\n" if notes else "")
    sys.stdout.write(f"environments: {engines_root()}\n")
    return 0


def _install(args: argparse.Namespace) -> int:
    Environment(args.name).install(_say, args.again)
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
