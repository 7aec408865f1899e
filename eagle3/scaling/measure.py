"""What each training came to: the data it saw, and its acceptance on held-out answers.

The answers that judge are those that chose no checkpoint; where a run holds out no more than it
chooses by, they are the same, and the finding says so.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3.data.features import SampleRef
from eagle3.data.local import open_taught
from eagle3.data.source import FeatureSource, open_source
from eagle3.export import official
from eagle3.progress import Progress
from eagle3.run import Context, current, read_config, read_manifest
from eagle3.train.evaluate import chain_acceptance
from eagle3.train.guard import non_finite
from eagle3.train.samples import choose


@dataclass(frozen=True)
class Training:
    """One training, measured."""

    share: str
    samples: int
    tokens: int
    """Tokens of its samples, prompts and answers, each counted once whatever the passes."""
    answer_tokens: int
    steps: int
    best_step: int
    emitted: list[int]
    """Tokens that chain drafting emits along each held-out answer."""
    rounds: list[int]
    """Rounds it takes, for each."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Judges:
    """The held-out answers that measure, the same for every training."""

    refs: list[SampleRef]
    chose: bool
    """Whether they chose the checkpoints too."""


def measure(run: Path, share: str, progress: Progress) -> tuple[Training, Judges]:
    """Measure the training that has ended in a run directory."""
    config = read_config(run)
    trained = current(run, "train")
    inputs = {stage: current(run, stage) for stage in ("resolve", "regenerate", "extract")}
    ctx = Context(run, "scaling", config, trained, inputs, progress, threading.Event())
    target = open_taught(ctx)
    source = open_source(ctx, target)
    try:
        chosen = choose(source, config.recipe.train, config.recipe.seed, progress)
        judges = _judges(source, {ref.id for ref in chosen.heldout})
        draft = official.load(trained / "draft", target.embed.weight.detach())
        depth = config.recipe.draft_depth
        found = []
        for n, ref in enumerate(judges.refs):
            found.append(chain_acceptance(draft, [source.load(ref)], depth))
            progress.progress(n + 1, len(judges.refs), "answer")
    finally:
        source.close()
    limit = config.recipe.train.max_length
    summary = read_manifest(trained)["summary"]
    spans = [(a, min(b, limit)) for ref in chosen.train for a, b in ref.spans if a < limit]
    training = Training(
        share,
        len(chosen.train),
        sum(min(ref.length, limit) for ref in chosen.train),
        sum(b - a for a, b in spans),
        summary["steps"],
        summary["best_step"],
        [one.emitted for one in found],
        [one.rounds for one in found],
    )
    return training, judges


def _judges(source: FeatureSource, chose: set[str]) -> Judges:
    refs = sorted(source.samples("heldout"), key=lambda ref: ref.id)
    others = [ref for ref in refs if ref.id not in chose]
    whole = [ref for ref in others or refs if not non_finite([source.load(ref)])]
    return Judges(whole, chose=not others)
