"""How many tokens a recipe makes, stores and trains on, for a number of prompts."""

from __future__ import annotations

from pydantic import Field

from eagle3.config import Recipe
from eagle3.plan.shape import Figures

TYPICAL_PROMPT_TOKENS = 64
"""Assumed length of a rendered prompt before any has been read."""


class Workload(Figures):
    """Tokens of one run: upper estimates, since answers may end before they reach their cap."""

    train_prompts: int
    heldout_prompts: int
    samples: int
    """Answers that are trained on."""
    sample_tokens: int = Field(gt=0)
    """Mean length of a training sample, as training cuts it."""
    supervised: float
    """Share of a training sample's tokens that belong to an answer."""
    prompt_tokens: int
    """Tokens of all prompts, each counted as often as it is answered."""
    response_tokens: int
    """Tokens that the target writes."""
    tokens: int
    """Tokens whose features are needed: prompts and answers of both splits."""
    train_tokens: int
    """Those of the training samples."""
    train_token_passes: int
    """`train_tokens` times epochs."""
    steps: int
    """Optimiser steps."""


def workload(
    recipe: Recipe,
    train_prompts: int,
    heldout_prompts: int,
    prompt_tokens: float = TYPICAL_PROMPT_TOKENS,
) -> Workload:
    """The tokens of a recipe applied to a number of prompts.

    Args:
        prompt_tokens: mean length of a rendered prompt.
    """
    r, t = recipe.regenerate, recipe.train
    samples = max(1, train_prompts * r.answers)
    written = samples * r.max_new_tokens
    if r.token_budget is not None and written > r.token_budget:
        samples = max(1, round(samples * r.token_budget / written))
        written = r.token_budget
    prompts = round(samples * prompt_tokens), round(heldout_prompts * prompt_tokens)
    responses = written + heldout_prompts * r.max_new_tokens
    length = min(t.max_length, max(1, round((written + prompts[0]) / samples)))
    passes = round(samples * length * t.epochs * t.data_share)
    return Workload(
        train_prompts=train_prompts,
        heldout_prompts=heldout_prompts,
        samples=samples,
        sample_tokens=length,
        supervised=min(1.0, max(0.0, 1 - prompt_tokens / length)),
        prompt_tokens=sum(prompts),
        response_tokens=responses,
        tokens=responses + sum(prompts),
        train_tokens=samples * length,
        train_token_passes=passes,
        steps=max(1, -(-passes // t.batch_tokens)),
    )
