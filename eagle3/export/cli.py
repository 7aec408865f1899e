"""`eagle3 export … --format` and `eagle3 import`: drafts to engines, and from other tools."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.config import TargetRef
from eagle3.errors import BadInput
from eagle3.plan.serve import FORMATS

DTYPES = ("float32", "bfloat16", "float16")


def add_export(command: argparse.ArgumentParser, stage: Callable[[Any], int]) -> None:
    """Give the stage's command its second form: with `--format` it writes for an engine."""
    engines = sorted({engine for engines in FORMATS.values() for engine in engines})
    command.usage = "eagle3 export RUN | eagle3 export RUN_OR_DRAFT --format FORMAT --out DIR"
    command.add_argument("--format", choices=FORMATS, help="write for a serving engine")
    command.add_argument("--engine", choices=engines, help="check for this one alone")
    command.add_argument("--target", type=Path, help="the target's directory; a run knows its own")
    command.add_argument("--out", type=Path, metavar="DIR", help="where to write; new or empty")
    command.add_argument("--dtype", choices=DTYPES, help="of the weights; the draft's own if empty")
    command.set_defaults(run_command=lambda args: _export(args) if args.format else stage(args))


def register(commands: Any) -> None:
    """Add `eagle3 import` to an argparse collection of commands."""
    command = commands.add_parser("import", help="take over a draft that another tool trained")
    command.add_argument("draft", type=Path, metavar="DRAFT", help="a directory, or a GGUF file")
    command.add_argument("--target", type=Path, required=True, help="the target's directory")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="new or empty")
    command.add_argument(
        "--layers",
        type=int,
        nargs=3,
        metavar=("LOW", "MID", "HIGH"),
        help="captured layers as indices into HF hidden_states, where its config leaves doubt",
    )
    command.set_defaults(run_command=_import)


def _export(args: argparse.Namespace) -> int:
    from eagle3.export.write import write  # torch loads only here

    if args.out is None:
        raise BadInput("--format without --out", "say where to write: --out DIR")
    engines = FORMATS[args.format]
    if args.engine and args.engine not in engines:
        fitting = ", ".join(f for f, loaders in FORMATS.items() if args.engine in loaders)
        raise BadInput(f"{args.engine} does not load {args.format}", f"--format {fitting}")
    _new(args.out)
    draft, target, name = _draft_and_target(args.run, args.target)
    engines = (args.engine,) if args.engine else engines
    written = write(draft, target, args.out, args.format, engines, args.dtype, name)
    sys.stdout.write(json.dumps(written, indent=2) + "\n")
    return 0


def _import(args: argparse.Namespace) -> int:
    from eagle3.export import imported, official  # torch loads only here
    from eagle3.load import load_config

    _new(args.out)
    target = _target(args.target)
    layers = tuple(args.layers) if args.layers else None
    found = imported.read(args.draft, target, layers)
    num_layers = load_config(target).get_text_config().num_hidden_layers
    official.write(found.stored, args.out, num_layers, found.dtype)
    c = found.stored.config
    written = {
        "from": found.tool,
        "draft": str(args.out),
        "capture_layers": list(c.capture_layers),
        "draft_vocab_size": c.draft_vocab_size,
        "dtype": str(found.dtype).removeprefix("torch."),
    }
    sys.stdout.write(json.dumps(written, indent=2) + "\n")
    return 0


def _draft_and_target(given: Path, target: Path | None) -> tuple[Path, Path, str]:
    """A draft's directory, its target's, and what the target is called elsewhere."""
    from eagle3.run import current, read_config

    if (given / "model.safetensors").is_file():
        if target is None:
            raise BadInput(f"{given} is a draft; of which target?", "--target DIR")
        return given, _target(target), str(target.resolve())
    if not (given / "stages").is_dir():
        raise BadInput(f"{given} is neither a run nor a draft", "name one of them")
    draft = current(given, "export") / "draft"
    pointer = current(given, "resolve") / "local.json"
    here = _target(target or Path(json.loads(pointer.read_text())["path"]))
    reference = TargetRef.parse(read_config(given).target)
    return draft, here, reference.location if reference.kind == "hub" else str(here.resolve())


def _target(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} has no config.json", "name the target's directory")
    return folder


def _new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is in use", "name a directory that is new or empty")
