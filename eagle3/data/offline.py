"""Features from shards on disk: hashed when first read, extracted again where damaged.

Shapes as in features.py.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3.data.extract import check_place, read_sequences, write_shard
from eagle3.data.features import FeatureIndex, Indexed, Sample, SampleRef, Shard
from eagle3.data.local import is_spread, open_target
from eagle3.data.records import Split
from eagle3.errors import BadInput
from eagle3.run import Context, sha256_file

AHEAD = 2
"""Batches that a thread reads while earlier ones are used."""

Repair = Callable[[Shard, str], Path]
"""Makes a shard anew, given what is wrong with it; returns the file to read."""


class FeatureStore(Indexed):
    """Reads a folder that `extract` wrote. Shards are memory-mapped, opened when first needed."""

    def __init__(self, folder: Path, index: FeatureIndex, repair: Repair | None = None) -> None:
        super().__init__(index)
        self.folder = folder
        self._repair = repair
        self._shards = {shard.file: shard for shard in index.shards}
        self._open: dict[str, Any] = {}
        self._lock = threading.RLock()

    @classmethod
    def open(cls, folder: Path, verify: bool = False, repair: Repair | None = None) -> Self:
        """Open a store.

        Args:
            verify: read every shard at once, in place of each when it is first needed.
            repair: called for a shard that is missing or damaged; such a shard is an error when
                empty.

        Raises:
            BadInput: no index or (with `verify`) a shard is not what was written.
        """
        store = cls(folder, FeatureIndex.read(folder), repair)
        if verify:
            for shard in store.index.shards:
                store._shard(shard.file)
        return store

    def samples(self, split: Split) -> list[SampleRef]:
        """The sequences of a split, in the order in which they are stored."""
        return [
            ref.model_copy(update={"shard": shard.file})
            for shard in self.index.shards
            for ref in shard.samples
            if ref.split == split
        ]

    def input_ids(self, ref: SampleRef) -> Tensor:
        return self._rows(ref, ["input_ids"])["input_ids"].to(torch.int64)

    def load(self, ref: SampleRef) -> Sample:
        """Copy one sequence out of its shard.

        Raises:
            BadInput: its shard is damaged and cannot be repaired, or holds what is no number.
        """
        return Sample.of(ref, self._rows(ref))

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        """The batches in order; a thread reads `AHEAD` of them in advance."""
        refs = iter(order)
        with ThreadPoolExecutor(1, thread_name_prefix="features") as reader:
            waiting: deque[Future[list[Sample]]] = deque(
                reader.submit(self._load_all, batch) for batch in islice(refs, AHEAD)
            )
            try:
                while waiting:
                    batch = waiting.popleft().result()
                    waiting.extend(reader.submit(self._load_all, b) for b in islice(refs, 1))
                    yield batch
            finally:
                for future in waiting:
                    future.cancel()

    def settle(self) -> None:
        """What is stored is read alone."""

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _load_all(self, refs: list[SampleRef]) -> list[Sample]:
        return [self.load(ref) for ref in refs]

    def _rows(self, ref: SampleRef, names: list[str] | None = None) -> dict[str, Tensor]:
        with self._lock:
            shard = self._shard(ref.shard)
            end = ref.start + ref.length
            return {name: shard.get_slice(name)[ref.start : end] for name in names or shard.keys()}

    def _shard(self, file: str) -> Any:
        """The open shard; when first opened, its content is compared with its hash."""
        if file not in self._open:
            path = self.folder / file
            check_place(path)
            if not path.is_file():
                path = self._mended(file, "is missing")
            elif sha256_file(path) != self._shards[file].sha256:
                path = self._mended(file, "is not what was written")
            self._open[file] = safe_open(path, framework="pt")
        return self._open[file]

    def _mended(self, file: str, problem: str) -> Path:
        if self._repair is None:
            raise BadInput(
                f"feature shard {self.folder / file} {problem}",
                "run the stage extract again: it keeps what is whole",
            )
        return self._repair(self._shards[file], problem)


class Reextraction:
    """Repairs a shard by the target, so that training goes on.

    The features of the same machine are the same to the bit: then the shard is put back in its
    place. Otherwise it serves this training alone, and the stage extract would make it anew.
    """

    def __init__(self, ctx: Context, top_k: int | None) -> None:
        self.ctx, self.top_k = ctx, top_k

    def __call__(self, shard: Shard, problem: str) -> Path:
        """Raises BadInput when the answers are no longer those of the shard."""
        ctx, folder = self.ctx, self.ctx.inputs["extract"]
        if is_spread(ctx):
            raise BadInput(
                f"feature shard {folder / shard.file} {problem}, and the target that would read "
                "its samples again is spread",
                "run the stage extract again",
            )
        ctx.progress.warning(
            f"feature shard {folder / shard.file} {problem}; the target reads its "
            f"{len(shard.samples)} samples again"
        )
        responses = ctx.inputs["regenerate"] / "responses.jsonl"
        known = {s.id: s for s in read_sequences(responses)}
        sequences = [known[ref.id] for ref in shard.samples if ref.id in known]
        if [s.ref().length for s in sequences] != [ref.length for ref in shard.samples]:
            raise BadInput(
                f"feature shard {folder / shard.file} {problem}, and {responses} holds other "
                "answers than it was made of",
                "run the stage extract again",
            )
        (ctx.out / "work").mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="features-", dir=ctx.out / "work"))  # one a process
        found = write_shard(open_target(ctx), sequences, work, shard.file, self.top_k)
        if found.sha256 != shard.sha256 or not os.access(folder, os.W_OK):
            return work / shard.file
        (work / shard.file).replace(folder / shard.file)
        return folder / shard.file
