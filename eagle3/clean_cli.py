"""`eagle3 clean RUN`: remove features that nothing needs any more; they are most of a run."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from eagle3.errors import BadInput
from eagle3.process import alone, stop_on_signals

SHARDS = "shard-*.safetensors"


def register(commands: Any) -> None:
    """Add the command to the subparsers of `eagle3`."""
    command = commands.add_parser("clean", help="remove features that nothing needs any more")
    command.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    command.add_argument(
        "--all",
        action="store_true",
        help="those of the present config too: training again would extract them again",
    )
    command.add_argument("--dry-run", action="store_true", help="say what would go")
    command.set_defaults(run_command=_clean)


def _clean(args: argparse.Namespace) -> int:
    freed = clean(args.run, everything=args.all, dry_run=args.dry_run)
    for path, size in freed.items():
        sys.stdout.write(f"{size / 1e9:9.3f} GB  {path}\n")
    verb = "would be freed" if args.dry_run else "freed"
    sys.stdout.write(f"{sum(freed.values()) / 1e9:9.3f} GB  {verb}\n")
    return 0


def clean(run: Path, everything: bool = False, dry_run: bool = False) -> dict[Path, int]:
    """Remove the features of configs that are no longer the run's; waits for a stage that runs.

    Args:
        everything: the present config's shards, too. Index and manifest stay, and with them what
            later stages made; `eagle3 extract` makes the same features again.

    Returns:
        What was removed (or would be), with its bytes.

    Raises:
        BadInput: the run directory is none.
    """
    if not (run / "config.json").is_file():
        raise BadInput(f"{run} has no config.json", "name a run directory, made by eagle3 init")
    with stop_on_signals() as stop, alone(run, "clean", _say, stop):
        stages = run / "stages" / "extract"
        pointer = stages / "current"
        current = stages / (pointer.read_text().strip() if pointer.is_file() else "-")
        found = [folder for folder in stages.glob("*") if folder.is_dir() and folder != current]
        if everything:
            found += sorted(current.glob(SHARDS))
        freed = {path: _size(path) for path in found}
        for path in () if dry_run else freed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return freed


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _say(message: str) -> None:
    sys.stderr.write(f"eagle3 clean: {message}\n")
