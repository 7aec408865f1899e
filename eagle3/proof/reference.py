"""The target as stock transformers runs it: a fresh model, its own attention, linears, cache and
`generate`; nothing of this engine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from eagle3 import stock
from eagle3.decode.sampling import Sampling
from eagle3.load import load_model
from eagle3.proof.tolerance import allowed_margin


class Reference:
    """A freshly loaded target.

    Args:
        dtype: what its weights are loaded in; that of the engine's target.
    """

    def __init__(
        self,
        path: Path,
        eos_ids: frozenset[int],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._path, self._device, self.dtype = path, device, dtype
        self._eos_ids = eos_ids
        self._model = self._load(dtype)

    def greedy(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """New tokens after `ids`, an EOS included."""
        return stock.generate(self._model, ids, max_new_tokens, self._eos_ids, Sampling())[0]

    def sample(self, ids: list[int], max_new_tokens: int, count: int, seed: int) -> list[list[int]]:
        """So many continuations, drawn at temperature 1 from the whole distribution."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return stock.generate(
                self._model, ids, max_new_tokens, self._eos_ids, Sampling(1.0), count
            )

    def margin(self, ids: list[int], tokens: tuple[int, int]) -> tuple[float, float]:
        """How far the worse of two tokens lies below the largest logit after `ids`, and how far it
        may lie: in float64 for a float32 target, else in the target's own type."""
        model = self._model if self.dtype.itemsize < torch.float32.itemsize else self._exact
        with torch.inference_mode():
            logits_V = model(torch.tensor([ids], device=self._device)).logits[0, -1].double()
        largest = float(logits_V.max())
        margin = largest - float(logits_V[list(tokens)].min())
        return margin, allowed_margin(largest, self.dtype)

    @cached_property
    def _exact(self) -> Any:
        """In float64, which the grouped products of experts are not made for."""
        return self._load(torch.float64, experts_implementation="eager")

    def _load(self, dtype: torch.dtype, **options: Any) -> Any:
        return load_model(self._path, dtype, self._device, **options)[0]
