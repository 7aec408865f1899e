"""The records of a feature store, and the samples that training reads.

    index.json            FeatureIndex
    shard-00000.safetensors, …

Shapes: T tokens of a shard (its sequences one after another), L tokens of one sequence, H target
hidden size, 3H the three captured features in order low, mid, high, K kept probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import ValidationError
from torch import Tensor

from eagle3.data.records import Record, Response, Split
from eagle3.data.topk import TopK, TopKLoss
from eagle3.errors import BadInput

CONVENTION = "hf hidden_states index (residual stream entering the layer)"

Mode = Literal["offline", "online", "streamed"]
Columns = dict[str, Tensor]
"""A sequence's rows, or a shard's, by name: what a safetensors file holds."""


class SampleRef(Record):
    """A sequence, and where it lies in its shard."""

    id: str
    split: Split
    start: int
    length: int
    spans: list[tuple[int, int]]
    """Half-open ranges of answer tokens, counted from the start of the sequence."""
    shard: str = ""
    """File name; empty inside `index.json`, where the shard is named once, and where features are
    not stored."""


class Shard(Record):
    file: str
    sha256: str
    tokens: int
    samples: list[SampleRef]
    top_k_loss: TopKLoss | None = None


class FeatureIndex(Record):
    """`index.json`: written last, so a folder that has one is complete."""

    hidden_size: int
    vocab_size: int
    capture_layers: tuple[int, int, int]
    convention: str = CONVENTION
    mode: Mode = "offline"
    """Other modes have no shards: features are made while training runs."""
    top_k: int | None = None
    responses_sha256: str = ""
    """Hash of the answers that the features belong to."""
    shards: list[Shard]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises BadInput when the folder has no index, or one that cannot be read."""
        path, hint = folder / "index.json", "run: eagle3 extract RUN"
        if not path.is_file():
            raise BadInput(f"{folder} holds no features (no index.json)", hint)
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError:
            raise BadInput(f"{path} is damaged", hint) from None


def finite(values: Tensor) -> bool:
    """Whether none is NaN or infinite. The sum of numbers is a number, so only where it is none
    does every one have to be looked at (it alone may have overflowed)."""
    if not values.is_floating_point() or bool(values.sum(dtype=torch.float32).isfinite()):
        return True
    return bool(values.isfinite().all())


class Indexed:
    """What an index alone says of features, whatever way they take."""

    def __init__(self, index: FeatureIndex) -> None:
        self.index = index

    @property
    def hidden_size(self) -> int:
        return self.index.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.index.vocab_size

    @property
    def capture_layers(self) -> tuple[int, int, int]:
        return self.index.capture_layers


@dataclass(frozen=True)
class TokenSequence:
    """One conversation as tokens: what a sample is before the target has read it."""

    id: str
    split: Split
    ids: Tensor
    """int32 [L]"""
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, response: Response) -> Self:
        ids = torch.tensor(response.ids, dtype=torch.int32)
        return cls(response.id, response.split, ids, response.spans)

    def ref(self, start: int = 0) -> SampleRef:
        return SampleRef(
            id=self.id, split=self.split, start=start, length=len(self.ids), spans=self.spans
        )


@dataclass(frozen=True)
class Sample:
    """One sequence with its features.

    The features and the final hidden state at row j come from reading tokens 0..j. `argmax` and
    `lse` are those of the target's logits at row j, which predict token j + 1; they are known from
    the row before each answer to its last row, and -1 and 0 elsewhere.
    """

    id: str
    split: Split
    input_ids: Tensor
    """int64 [L]"""
    features: Tensor
    """bfloat16 [L, 3H]"""
    hidden: Tensor
    """bfloat16 [L, H], after the target's final norm: its head makes the logits of it. [L, 0] where
    `top` takes its place."""
    argmax: Tensor
    """int64 [L]"""
    lse: Tensor
    """float32 [L]: log-sum-exp of the logits over the whole vocabulary."""
    spans: list[tuple[int, int]]
    top: TopK | None = None
    """The largest probabilities of each row, where the store keeps these alone."""

    @classmethod
    def of(cls, ref: SampleRef, rows: Mapping[str, Tensor]) -> Self:
        """A sample from its rows of the columns."""
        return cls(
            id=ref.id,
            split=ref.split,
            input_ids=rows["input_ids"].to(torch.int64),
            features=rows["features"],
            hidden=rows["hidden"] if "hidden" in rows else rows["features"][:, :0],
            argmax=rows["argmax"].to(torch.int64),
            lse=rows["lse"],
            spans=ref.spans,
            top=TopK(rows["top_ids"].to(torch.int64), rows["top_probs"].float())
            if "top_ids" in rows
            else None,
        )

    def first(self, limit: int) -> Sample:
        """The first `limit` rows; spans end there too."""
        if len(self.input_ids) <= limit:
            return self
        return replace(
            self,
            input_ids=self.input_ids[:limit],
            features=self.features[:limit],
            hidden=self.hidden[:limit],
            argmax=self.argmax[:limit],
            lse=self.lse[:limit],
            spans=[(a, min(b, limit)) for a, b in self.spans if a < limit],
            top=None if self.top is None else self.top[:limit],
        )
