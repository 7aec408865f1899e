"""The trainings: a run directory for each share of the data, on the features of one run.

    RUN/scaling/<share>/config.json      the run's, with another `train.data_share`
    RUN/scaling/<share>/stages/resolve, regenerate, extract    links to the run's own
    RUN/scaling/<share>/stages/train     a training as any other: cached, resumable

The whole data is the run's own training: where that is done already, it is not done again.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from eagle3.config import RunConfig
from eagle3.run import current, read_config, write_json

SHARED = ("resolve", "regenerate", "extract")


def name_of(share: Fraction) -> str:
    """Its folder, as in `1-of-8`."""
    return f"{share.numerator}-of-{share.denominator}"


def prepare(run: Path, share: Fraction) -> Path:
    """The run directory that trains on a share of a run's data.

    Raises:
        BadInput: the run has no features yet, or its config cannot be read.
    """
    config = read_config(run)
    for stage in SHARED:
        current(run, stage)
    if share == 1:
        return run
    folder = run / "scaling" / name_of(share)
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    for stage in SHARED:
        link = folder / "stages" / stage
        if not link.is_symlink():
            link.symlink_to(Path("..", "..", "..", "stages", stage))
    write_json(folder / "config.json", on_share(config, share).model_dump(mode="json"))
    return folder


def on_share(config: RunConfig, share: Fraction) -> RunConfig:
    """As many passes over less data: fewer steps, and as many evaluations, so that every training
    keeps the best of as many drafts."""
    train = config.recipe.train

    def scaled(steps: int) -> int:
        return max(1, round(steps * share))

    changes: dict[str, Any] = {
        "data_share": train.data_share * float(share),
        "eval_every": scaled(train.eval_every),
    }
    if train.warmup_steps is not None:
        changes["warmup_steps"] = scaled(train.warmup_steps)
    recipe = config.recipe.model_copy(update={"train": train.model_copy(update=changes)})
    return config.model_copy(update={"recipe": recipe})
