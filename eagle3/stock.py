"""Stock transformers' `generate`: an implementation of decoding that is not ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from eagle3.decode.sampling import Sampling


def generate(
    model: Any,
    ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int],
    sampling: Sampling,
    count: int = 1,
    watch: Sequence[StoppingCriteria] = (),
) -> list[list[int]]:
    """New tokens after `ids`, an EOS included; none of the model's own generation settings.

    Args:
        sampling: its temperature, top-k and top-p alone.
        count: continuations.
        watch: called after each token.
    """
    ends = sorted(eos_ids)
    chosen: dict[str, Any] = {"do_sample": False}
    if not sampling.is_greedy:
        chosen = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p or 1.0,
        }
    config = GenerationConfig(
        **chosen,
        num_beams=1,
        num_return_sequences=count,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else None,
    )
    model.generation_config = config  # unset fields would be filled in from it
    ids_1P = torch.tensor([list(ids)], device=model.device)
    rows = model.generate(
        ids_1P,
        attention_mask=torch.ones_like(ids_1P),
        generation_config=config,
        stopping_criteria=StoppingCriteriaList(list(watch)),
    ).tolist()
    return [_ended(row[len(ids) :], eos_ids) for row in rows]


def _ended(tokens: list[int], eos_ids: Collection[int]) -> list[int]:
    """Tokens up to the first EOS; what follows it in a batch is padding."""
    end = next((at for at, token in enumerate(tokens, start=1) if token in eos_ids), None)
    return tokens[:end]
