"""`eagle3 preview`: what a run trains on, in colour, before anything is trained."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from eagle3.config import RunConfig, explain, load_recipe
from eagle3.errors import BadInput
from eagle3.run import (
    Stage,
    current,
    read_config,
    read_manifest,
    run_stage,
    sha256_json,
    write_json,
)


def register(commands: Any) -> None:
    """Add the command to an argparse collection of them."""
    preview = commands.add_parser(
        "preview", help="what is supervised: masks, truncation, draft vocabulary"
    )
    preview.set_defaults(run_command=run)
    preview.add_argument("run", type=Path, nargs="?", metavar="RUN", help="the run directory")
    preview.add_argument("--target", help="look at a prompt set without a run: the target,")
    preview.add_argument("--prompts", help="the set (a file, a directory, a hub data set),")
    preview.add_argument("--recipe", default="quick", help="and the recipe")
    preview.add_argument("--samples", type=_count, default=3, metavar="N", help="samples to show")
    preview.add_argument("--html", type=Path, metavar="FILE", help="write a web page there, too")


def run(args: argparse.Namespace) -> int:
    if (args.run is None) != bool(args.target and args.prompts):
        raise BadInput("expected RUN, or --target and --prompts in its place")
    try:
        if args.run is not None:
            return _show(args.run, args)
        with tempfile.TemporaryDirectory(prefix="eagle3-preview-") as folder:
            _make_run(Path(folder), args)
            return _show(Path(folder), args)
    except ValidationError as e:
        raise BadInput(explain(e)) from None
    except ValueError as e:  # what load_recipe has to say
        raise BadInput(str(e)) from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of samples, got {text!r}")
    return int(text)


def _make_run(folder: Path, args: argparse.Namespace) -> None:
    """A run that trains on the answers of the set."""
    recipe = load_recipe(args.recipe, {"regenerate": {"mode": "given"}})
    recipe = recipe.with_prompts({"source": args.prompts})
    config = RunConfig(target=args.target, prompts=recipe.prompts, recipe=recipe)
    write_json(folder / "config.json", config.model_dump(mode="json"))


def _show(folder: Path, args: argparse.Namespace) -> int:
    from eagle3.data.preview import look  # torch loads only here
    from eagle3.data.preview_view import page, terminal
    from eagle3.stages import STAGES

    config = read_config(folder)
    for name in ("resolve", "prepare"):
        if _output(folder, STAGES[name], config) is None:
            sys.stderr.write(f"running {name} first\n")
            with open(os.devnull, "w") as quiet:
                run_stage(STAGES[name], folder, quiet)
    outputs = {name: _output(folder, stage, config) for name, stage in STAGES.items()}
    found = {name: out for name, out in outputs.items() if out is not None}
    preview = look(config, found, args.samples)
    sys.stdout.write(terminal(preview, _in_colour(sys.stdout)))
    if args.html is not None:
        try:
            args.html.parent.mkdir(parents=True, exist_ok=True)
            args.html.write_text(page(preview), encoding="utf-8")
        except OSError as e:
            raise BadInput(f"--html {args.html} cannot be written: {e.strerror}") from None
        sys.stdout.write(f"\npage: {args.html}\n")
    return 0


def _output(folder: Path, stage: Stage, config: RunConfig) -> Path | None:
    """What a stage has made of the present config and inputs; None when it has not. While another
    stage runs, a look at what is there does not wait for it."""
    try:
        out = current(folder, stage.name)
        inputs = stage.inputs(folder, config)
    except BadInput:
        return None
    if stage.name == "resolve" and not (out / "local.json").is_file():
        return None
    key = read_manifest(out)["key"]
    digests = {name: read_manifest(path)["outputs_digest"] for name, path in inputs.items()}
    same = sha256_json(key["config"]) == sha256_json(stage.config_key(config))
    return out if same and key["inputs"] == digests else None


def _in_colour(stream: TextIO) -> bool:
    """Colours at a terminal (https://no-color.org and its opposite are heard)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()
