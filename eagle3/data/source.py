"""Where training gets the target's features from, whatever way they take there.

offline    shards on disk, written by the stage `extract`
online     the target runs in the training process, batch by batch; nothing is stored
streamed   the target runs in a process of its own, a few batches ahead
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from eagle3.data.features import FeatureIndex, Sample, SampleRef
from eagle3.data.local import makes_features, open_target, target_dir, working_type
from eagle3.data.offline import FeatureStore, Reextraction
from eagle3.data.online import OnlineSource
from eagle3.data.records import Split
from eagle3.data.stream import StreamedSource
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
        """The samples of each batch, in this order; the next ones may be prepared meanwhile."""
        ...

    def settle(self) -> None:
        """Until no process reads any more; where the target is spread over them, each helps the
        others meanwhile, so all must call it when they have what they asked for."""
        ...

    def close(self) -> None:
        """Let go of files and processes; may be called twice."""
        ...


def open_source(ctx: Context, target: Target) -> FeatureSource:
    """The features that `extract` made, or promised to make while training runs.

    Args:
        target: in float32, with the captured layers of `resolve` (`open_taught`).

    Raises:
        BadInput: they are missing or incomplete.
    """
    folder, responses = ctx.inputs["extract"], ctx.inputs["regenerate"] / "responses.jsonl"
    index = FeatureIndex.read(folder)
    config = ctx.config.recipe.extract
    match index.mode:
        case "offline":
            return FeatureStore(folder, index, Reextraction(ctx, index.top_k))
        case "online":
            reader = target if makes_features(ctx) else open_target(ctx)
            return OnlineSource(reader, index, responses)
        case "streamed":
            device = config.device or _last_device()
            dtype = working_type(ctx, device)
            return StreamedSource(
                index, responses, target_dir(ctx), config.queue_batches, device, dtype
            )


def _last_device() -> str:
    """Training takes the first GPU; where there are several, the target gets another."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{gpus - 1}" if gpus else "cpu"
