"""The target as stock transformers runs it: a fresh model, its own attention, linears, cache and
`generate`; nothing of this engine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

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
        self._eos_ids = sorted(eos_ids)
        self._model = self._load(dtype)

    def greedy(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """New tokens after `ids`, an EOS included; none of the model's own generation settings."""
        return self._generate(ids, max_new_tokens, do_sample=False)[0]

    def sample(self, ids: list[int], max_new_tokens: int, count: int, seed: int) -> list[list[int]]:
        """So many continuations, drawn at temperature 1 from the whole distribution."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self._generate(
                ids,
                max_new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=count,
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

    def _generate(self, ids: list[int], max_new_tokens: int, **how: Any) -> list[list[int]]:
        config = GenerationConfig(
            num_beams=1,
            max_new_tokens=max_new_tokens,
            eos_token_id=self._eos_ids or None,
            pad_token_id=self._eos_ids[0] if self._eos_ids else None,
            **how,
        )
        self._model.generation_config = config  # unset fields would be filled in from it
        ids_1P = torch.tensor([ids], device=self._device)
        mask_1P = torch.ones_like(ids_1P)
        out = self._model.generate(ids_1P, attention_mask=mask_1P, generation_config=config)
        return [self._ended(row[len(ids) :]) for row in out.tolist()]

    def _ended(self, tokens: list[int]) -> list[int]:
        """Tokens up to the first EOS; what follows it in a batch is padding."""
        ends = [at for at, token in enumerate(tokens, start=1) if token in self._eos_ids]
        return tokens[: ends[0]] if ends else tokens

    @cached_property
    def _exact(self) -> Any:
        """In float64, which the grouped products of experts are not made for."""
        return self._load(torch.float64, experts_implementation="eager")

    def _load(self, dtype: torch.dtype, **options: Any) -> Any:
        return load_model(self._path, dtype, self._device, **options)[0]
