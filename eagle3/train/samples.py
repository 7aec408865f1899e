"""Which samples teach, and which judge."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.config import TrainConfig
from eagle3.data.features import SampleRef
from eagle3.data.source import FeatureSource
from eagle3.errors import BadInput
from eagle3.progress import Progress
from eagle3.train.guard import non_finite


@dataclass(frozen=True)
class Samples:
    train: list[SampleRef]
    heldout: list[SampleRef]
    left_out: int
    """Training samples no row of which is supervised."""
    cut: int
    """Training samples that are cut at `train.max_length`."""


def choose(source: FeatureSource, config: TrainConfig, seed: int, progress: Progress) -> Samples:
    """The share of the training samples that teach, and the last held-out ones by id.

    Raises:
        BadInput: one of the two is empty.
    """
    limit = config.max_length
    found = source.samples("train")
    train = [ref for ref in found if teaches(ref, limit)]
    refs = sorted(source.samples("heldout"), key=lambda ref: ref.id)[-config.eval_samples :]
    faulty = non_finite(source.load(ref) for ref in refs)
    if faulty:
        progress.warning(
            f"held-out samples {', '.join(faulty)} are left out: their features hold NaN or "
            "infinity"
        )
    heldout = [ref for ref in refs if ref.id not in faulty]
    left_out = len(found) - len(train)
    if not train or not heldout:
        raise BadInput(
            f"training needs answers of both splits: {len(train)} training samples (and "
            f"{left_out} whose answer is of one token, or begins beyond train.max_length {limit}) "
            f"and {len(heldout)} held-out ones",
            "add prompts, or raise train.max_length",
        )
    train = part(train, config.data_share, seed)
    return Samples(train, heldout, left_out, sum(ref.length > limit for ref in train))


def part(refs: Sequence[SampleRef], share: float, seed: int) -> list[SampleRef]:
    """A share of samples in their own order, one at least: those that a hash puts first, so that
    parts of one seed lie inside each other."""
    ranked = sorted(refs, key=lambda r: hashlib.sha256(f"{seed} {r.id}".encode()).digest())
    kept = {ref.id for ref in ranked[: max(1, round(share * len(refs)))]}
    return [ref for ref in refs if ref.id in kept]


def teaches(ref: SampleRef, limit: int) -> bool:
    """Whether a row of its first `limit` is supervised: an answer's first token and its second."""
    return any(min(end, limit) - start >= 2 for start, end in ref.spans)
