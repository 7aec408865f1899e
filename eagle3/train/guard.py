"""Batches that NaN or infinity made useless: named, left out within a limit, and kept to look at.

skipped/step-000012/batch.json             ids, why, answer spans
skipped/step-000012/batch.safetensors      `<n>.features` and so on of the n-th sample
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from eagle3.data.features import Sample, finite
from eagle3.errors import BadInput

COLUMNS = ("input_ids", "features", "hidden", "argmax", "lse")


def non_finite(samples: Iterable[Sample]) -> list[str]:
    """Ids of the samples in which anything that the target said is NaN or infinity."""
    return [s.id for s in samples if not all(map(finite, _columns(s).values()))]


def _columns(sample: Sample) -> dict[str, Tensor]:
    """A sample's tensors by name."""
    out = {name: getattr(sample, name) for name in COLUMNS}
    if sample.top is not None:
        out |= {"top_ids": sample.top.ids, "top_probs": sample.top.probs}
    return out


class Guard:
    """Leaves out the batches it is told of, until there are too many.

    Args:
        folder: where such batches are kept; made when the first comes.
        limit: how many a training may leave out.
        skipped: what was left out so far, one record a step; grows in place.
        keeps: whether this process is the one that writes them down.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        skipped: list[dict[str, Any]],
        warn: Callable[[str], None],
        keeps: bool = True,
    ) -> None:
        self._keeps = keeps
        self.folder, self.limit, self.skipped, self._warn = folder, limit, skipped, warn

    def skip(self, step: int, samples: list[Sample], reason: str) -> None:
        """Leave out the batch of `step`; no weight has been changed by it.

        Raises:
            BadInput: it is one more than the limit.
        """
        ids = [s.id for s in samples]
        kept = self._keep(step, samples, reason)
        self.skipped.append({"step": step, "samples": ids, "reason": reason})
        text = f"step {step}: {reason}; its batch of samples {', '.join(ids)} is kept in {kept}"
        if len(self.skipped) > self.limit:
            raise BadInput(
                f"{text}; {len(self.skipped)} batches are more than train.max_skipped {self.limit}",
                "look at the batches kept; extract again where features hold NaN, lower "
                "train.learning_rate where the loss does",
            )
        self._warn(f"{text}; it is left out ({len(self.skipped)} of at most {self.limit})")

    def _keep(self, step: int, samples: list[Sample], reason: str) -> Path:
        final = self.folder / f"step-{step:06d}"
        if not self._keeps:
            return final
        writing = self.folder / "writing"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        tensors = {
            f"{n}.{name}": value.contiguous()
            for n, sample in enumerate(samples)
            for name, value in _columns(sample).items()
        }
        save_file(tensors, writing / "batch.safetensors")
        facts = [{"id": s.id, "split": s.split, "spans": s.spans} for s in samples]
        text = json.dumps({"step": step, "reason": reason, "samples": facts}, indent=1)
        (writing / "batch.json").write_text(text + "\n")
        shutil.rmtree(final, ignore_errors=True)
        writing.rename(final)
        return final
