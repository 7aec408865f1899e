"""Features that are made when they are asked for, by a target in the training process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from eagle3.data.capture import captured_samples
from eagle3.data.extract import read_sequences
from eagle3.data.features import FeatureIndex, Indexed, Sample, SampleRef, TokenSequence
from eagle3.data.records import Split
from eagle3.errors import BadInput
from eagle3.run import sha256_file
from eagle3.target import Target

KEEP_BYTES = 2**29
"""Samples that were loaded one by one (the held-out ones, at every evaluation) stay in memory up to
this size."""


class Unstored(Indexed):
    """What is known of features that are not stored: everything but the features.

    Raises:
        BadInput: the answers are not those of the index.
    """

    def __init__(self, index: FeatureIndex, responses: Path) -> None:
        if sha256_file(responses) != index.responses_sha256:
            raise BadInput(
                f"{responses} has changed since the stage extract ran",
                "run the stage extract again",
            )
        super().__init__(index)
        self.sequences = read_sequences(responses)
        self.place = {s.id: i for i, s in enumerate(self.sequences)}

    def samples(self, split: Split) -> list[SampleRef]:
        return [s.ref() for s in self.sequences if s.split == split]

    def input_ids(self, ref: SampleRef) -> Tensor:
        return self.sequence(ref).ids.to(torch.int64)

    def sequence(self, ref: SampleRef) -> TokenSequence:
        return self.sequences[self.place[ref.id]]


class Recent:
    """Samples by id, the least recently used leaving first."""

    def __init__(self, limit: int = KEEP_BYTES) -> None:
        self.limit, self.bytes = limit, 0
        self._samples: OrderedDict[str, Sample] = OrderedDict()

    def get(self, sample_id: str) -> Sample | None:
        if sample_id in self._samples:
            self._samples.move_to_end(sample_id)
        return self._samples.get(sample_id)

    def put(self, sample: Sample) -> Sample:
        self._samples[sample.id] = sample
        self.bytes += _size(sample)
        while self.bytes > self.limit:
            self.bytes -= _size(self._samples.popitem(last=False)[1])
        return sample


class OnlineSource(Unstored):
    """The target reads each batch just before training does."""

    def __init__(self, target: Target, index: FeatureIndex, responses: Path) -> None:
        super().__init__(index, responses)
        self._target = target
        self._recent = Recent()

    def load(self, ref: SampleRef) -> Sample:
        known = self._recent.get(ref.id)
        return known or self._recent.put(*captured_samples(self._target, [self.sequence(ref)]))

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        for refs in order:
            yield captured_samples(self._target, [self.sequence(ref) for ref in refs])

    def settle(self) -> None:
        self._target.accompany()

    def close(self) -> None:
        self._recent = Recent()


def _size(sample: Sample) -> int:
    return sample.features.nbytes + sample.hidden.nbytes
