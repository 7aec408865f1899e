"""Where training gets the target's features from, whatever way they take there.

offline    shards on disk, written by the stage `extract`
online     the target runs in the training process, batch by batch; nothing is stored
streamed   the target runs in a process of its own, a few batches ahead
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from eagle3.data.features import FeatureStore, Sample, SampleRef
from eagle3.data.records import Split
from eagle3.run import Context
from eagle3.target import Target


class FeatureSource(Protocol):
    """Samples with their features. Training uses this alone and cannot tell which kind it has."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def capture_layers(self) -> tuple[int, int, int]: ...

    def samples(self, split: Split) -> list[SampleRef]:
        """All samples of a split, always in the same order; costs no forward."""
        ...

    def input_ids(self, ref: SampleRef) -> Tensor:
        """A sample's tokens, int64 [L]; costs no forward."""
        ...

    def load(self, ref: SampleRef) -> Sample:
        """One sample, out of order (evaluation)."""
        ...

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        """The samples of each batch, in this order; the next ones may be prepared meanwhile.

        One iteration at a time: a new one ends the former.
        """
        ...

    def close(self) -> None:
        """Let go of files and processes; may be called twice."""
        ...


def open_source(ctx: Context, target: Target) -> FeatureSource:
    """The features that `extract` made, or promised to make while training runs.

    Args:
        target: the trainer's own, with the captured layers of `resolve`.

    Raises:
        BadInput: they are missing or incomplete.
    """
    return FeatureStore.open(ctx.inputs["extract"])
