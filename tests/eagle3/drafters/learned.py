"""A target that can be learned in seconds, its answers in memory, and a training on them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eagle3.config import TrainConfig
from eagle3.data.features import Sample, SampleRef
from eagle3.data.records import Split
from eagle3.draft import DraftConfig
from eagle3.drafters.eagle import Eagle
from eagle3.drafters.hydra import Hydra
from eagle3.drafters.medusa import Medusa
from eagle3.drafters.static import Layout
from eagle3.drafters.trainer import Budget, Fitted, Method, fit
from eagle3.target import Target
from eagle3.train.samples import Samples
from tests.golden import CAPTURE, HIDDEN, golden_target

VOCAB = 48
ANSWER = 24
LAYOUT = Layout(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0)))
CONFIG = TrainConfig(
    learning_rate=1e-2, batch_tokens=160, max_length=64, grad_clip=1.0, schedule="cosine"
)


def read(target: Target, ids: list[int], spans: list[tuple[int, int]], name: str) -> Sample:
    """A sample as extraction makes it, in float32."""
    hidden, features = target.forward(torch.tensor([ids]), target.new_cache(len(ids)), capture=True)
    logits_LV = target.logits(hidden[0])
    assert features is not None
    return Sample(
        name,
        "train",
        torch.tensor(ids),
        features[0].clone(),
        hidden[0].clone(),
        logits_LV.argmax(-1),
        logits_LV.logsumexp(-1),
        spans,
    )


@dataclass
class Memory:
    """A feature source in memory."""

    found: list[Sample]
    vocab_size: int = VOCAB
    hidden_size: int = HIDDEN
    capture_layers: tuple[int, int, int] = CAPTURE
    seen: list[list[str]] = field(default_factory=list)
    """Ids of the batches that were asked for."""

    def samples(self, split: Split) -> list[SampleRef]:
        return [
            SampleRef(id=s.id, split=split, start=0, length=len(s.input_ids), spans=s.spans)
            for s in self.found
        ]

    def load(self, ref: SampleRef) -> Sample:
        return next(s for s in self.found if s.id == ref.id)

    def input_ids(self, ref: SampleRef) -> Tensor:
        return self.load(ref).input_ids

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        for refs in order:
            self.seen.append([ref.id for ref in refs])
            yield [self.load(ref) for ref in refs]

    def settle(self) -> None: ...

    def close(self) -> None: ...


@cache
def permuted() -> tuple[Target, list[Sample]]:
    """A target whose next token follows from the last one, and its answers to random prompts."""
    golden, draw = golden_target(VOCAB), random.Random(0)
    samples = []
    for i in range(40):
        prompt = [draw.randrange(VOCAB) for _ in range(3)]
        ids = [*prompt, *golden.chain(prompt[-1], ANSWER)]
        samples.append(read(golden.target, ids, [(3, len(ids))], f"s{i:02}"))
    return golden.target, samples


def split(source: Memory) -> Samples:
    """The last eight samples judge."""
    refs = source.samples("train")
    return Samples(refs[:-8], refs[-8:], 0, 0)


def trained(
    method: Method, tokens: int = 30_000, config: TrainConfig = CONFIG, **rest: Any
) -> Fitted:
    """Fit a method to `permuted`."""
    source = Memory(permuted()[1])
    return fit(method, source, split(source), config, Budget(tokens=tokens), **rest)


def new_heads(
    kind: type[Medusa] | type[Hydra], target: Target, kept: Tensor | None = None
) -> Medusa | Hydra:
    kept = torch.arange(VOCAB) if kept is None else kept
    return kind(target.embed.weight.detach(), kept, target.head_weight().detach(), 3)


def new_eagle(kind: type[Eagle], target: Target) -> Eagle:
    config = DraftConfig.for_target(target.config, CAPTURE, VOCAB)
    head_VH = target.head_weight().detach()
    return kind(config, target.embed.weight.detach(), torch.arange(VOCAB), head_VH, depth=3)
