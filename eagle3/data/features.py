"""The feature store: what training needs of the target, one row a token, in packed shards.

    index.json            FeatureIndex
    shard-00000.safetensors, …

Shapes: T tokens of a shard (its sequences one after another), L tokens of one sequence, H target
hidden size, 3H the three captured features in order low, mid, high.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3.data.records import Record, Split
from eagle3.errors import BadInput
from eagle3.run import sha256_file

CONVENTION = "hf hidden_states index (residual stream entering the layer)"


class SampleRef(Record):
    """Where a sequence lies in its shard."""

    id: str
    split: Split
    start: int
    length: int
    spans: list[tuple[int, int]]
    """Half-open ranges of answer tokens, counted from the start of the sequence."""
    shard: str = ""
    """File name; empty inside `index.json`, where the shard is named once."""


class Shard(Record):
    file: str
    sha256: str
    tokens: int
    samples: list[SampleRef]


class FeatureIndex(Record):
    """`index.json`: written last, so a folder that has one is complete."""

    hidden_size: int
    vocab_size: int
    capture_layers: tuple[int, int, int]
    convention: str = CONVENTION
    shards: list[Shard]


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
    """bfloat16 [L, H], after the target's final norm: its head makes the logits of it."""
    argmax: Tensor
    """int64 [L]"""
    lse: Tensor
    """float32 [L]: log-sum-exp of the logits over the whole vocabulary."""
    spans: list[tuple[int, int]]


class FeatureStore:
    """Reads a folder that `extract` wrote. Shards are memory-mapped, opened when first needed."""

    def __init__(self, folder: Path, index: FeatureIndex) -> None:
        self.folder, self.index = folder, index
        self._open: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> Self:
        """Open a store; `verify` reads every shard once and checks its hash.

        Raises:
            BadInput: no index, a shard is missing, or (with `verify`) its content has changed.
        """
        path = folder / "index.json"
        if not path.is_file():
            raise BadInput(f"{folder} holds no features (no index.json)", "run: eagle3 extract RUN")
        index = FeatureIndex.model_validate_json(path.read_text())
        for shard in index.shards:
            file = folder / shard.file
            if not file.is_file() or (verify and sha256_file(file) != shard.sha256):
                state = "is not what was written" if file.is_file() else "is missing"
                raise BadInput(f"feature shard {file} {state}", f"remove {folder}; extract again")
        return cls(folder, index)

    def samples(self, split: Split) -> list[SampleRef]:
        """The sequences of a split, in the order in which they are stored."""
        return [
            ref.model_copy(update={"shard": shard.file})
            for shard in self.index.shards
            for ref in shard.samples
            if ref.split == split
        ]

    @property
    def hidden_size(self) -> int:
        return self.index.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.index.vocab_size

    @property
    def capture_layers(self) -> tuple[int, int, int]:
        return self.index.capture_layers

    def input_ids(self, ref: SampleRef) -> Tensor:
        return self._rows(ref, "input_ids").to(torch.int64)

    def load(self, ref: SampleRef) -> Sample:
        """Copy one sequence out of its shard."""
        return Sample(
            id=ref.id,
            split=ref.split,
            input_ids=self.input_ids(ref),
            features=self._rows(ref, "features"),
            hidden=self._rows(ref, "hidden"),
            argmax=self._rows(ref, "argmax").to(torch.int64),
            lse=self._rows(ref, "lse"),
            spans=ref.spans,
        )

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        return ([self.load(ref) for ref in refs] for refs in order)

    def close(self) -> None:
        self._open.clear()

    def _rows(self, ref: SampleRef, name: str) -> Tensor:
        if ref.shard not in self._open:
            self._open[ref.shard] = safe_open(self.folder / ref.shard, framework="pt")
        found: Tensor = self._open[ref.shard].get_slice(name)[ref.start : ref.start + ref.length]
        return found


def bytes_per_token(hidden_size: int) -> int:
    """Disk that a token takes: features and hidden in bfloat16, ids, argmax and lse in 4 bytes."""
    return 4 * hidden_size * 2 + 3 * 4
