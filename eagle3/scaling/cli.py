"""`eagle3 scaling RUN`: train on parts of a run's data, and say what twice the data would give."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

from eagle3.errors import BadInput
from eagle3.progress import Progress
from eagle3.run import RunStage, current, read_config, read_manifest
from eagle3.scaling.trainings import prepare

EXPLAINED = """
Parts of the training samples, each inside the next, are trained on for as many passes, on the
features of RUN. Every training is cached in RUN/scaling/, can be stopped and goes on; the whole is
the run's own training. The finding: RUN/scaling/scaling.md, .json, .svg and .png."""


def register(
    commands: Any, run_stage: RunStage, readable: Callable[[TextIO], io.TextIOBase]
) -> None:
    """Add the command to an argparse collection of them.

    Args:
        readable: wraps a stream so that a stage's JSON lines become lines for people.
    """
    command = commands.add_parser(
        "scaling", help="how much data is enough: trains on parts of it", epilog=EXPLAINED
    )
    command.add_argument("run", type=Path, metavar="RUN", help="a run with features (extract)")
    command.add_argument(
        "--shares",
        type=_share,
        nargs="+",
        default=[Fraction(1, n) for n in (8, 4, 2, 1)],
        metavar="1/N",
        help="parts of the data to train on; 1/8 1/4 1/2 1 when empty",
    )

    def run(args: argparse.Namespace) -> int:
        return _scaling(args.run, _ordered(args.shares), run_stage, readable(sys.stdout))

    command.set_defaults(run_command=run)


def _share(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; expected 1/4 or 0.25") from None


def _ordered(shares: list[Fraction]) -> list[Fraction]:
    found = sorted(set(shares))
    if len(found) < 2 or found[0] <= 0 or found[-1] > 1:
        said = " ".join(map(str, shares))
        raise BadInput(
            f"--shares {said}: expected at least two different parts above 0, at most 1",
            "for instance: --shares 1/8 1/4 1/2 1",
        )
    return found


def _scaling(run: Path, shares: list[Fraction], run_stage: RunStage, stream: io.TextIOBase) -> int:
    folders = [prepare(run, share) for share in shares]
    progress = Progress("scaling", run / "logs" / "scaling.jsonl", stream)
    for n, (share, folder) in enumerate(zip(shares, folders, strict=True)):
        progress.info(f"training {n + 1} of {len(shares)}, on {share} of the data, in {folder}")
        code = run_stage("train", folder, stream)
        if code:
            return code
    progress.info("measuring them on held-out answers")
    sys.stdout.write(_find(run, shares, folders, progress))
    sys.stdout.write(f"scaling: {run / 'scaling' / 'scaling.md'}\n")
    return 0


def _find(run: Path, shares: list[Fraction], folders: list[Path], progress: Progress) -> str:
    """Measure the trainings, fit the curve, write the finding; returns its text."""
    # torch and matplotlib load only here
    import numpy as np

    from eagle3.scaling.fit import fit
    from eagle3.scaling.measure import measure
    from eagle3.scaling.report import Finding, write

    measured = [
        measure(folder, str(share), progress) for share, folder in zip(shares, folders, strict=True)
    ]
    trainings = [training for training, _ in measured]
    sizes = [training.tokens for training in trainings]
    if len(set(sizes)) < len(sizes):
        raise BadInput(
            f"{', '.join(map(str, shares))} of the data are {sizes} tokens: too little to tell "
            "the parts apart",
            "regenerate more answers, or name fewer --shares",
        )
    config = read_config(run)
    curve = fit(
        sizes,
        np.array([training.emitted for training in trainings], dtype=np.float64),
        np.array([training.rounds for training in trainings], dtype=np.float64),
        config.recipe.draft_depth + 1,
        config.recipe.seed,
    )
    target = read_manifest(current(run, "resolve"))["summary"].get("resolved", config.target)
    chose = any(judges.chose for _, judges in measured)
    finding = Finding(
        target, config.recipe.seed, config.recipe.draft_depth, trainings, curve, chose
    )
    return write(finding, run / "scaling")
