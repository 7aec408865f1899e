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
    """Tokens of the prompts that the target answers, each as often as it does."""
    response_tokens: int
    """Tokens that the target writes."""
    tokens: int
    """Tokens whose features are needed: prompts and answers of both splits."""
    train_tokens: int
    """Those of the training samples."""
    train_token_passes: int
    """`train_tokens` times epochs."""


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
    given = r.mode == "given"  # answers as long as training takes them, which nobody writes
    answer = max(1, round(t.max_length - prompt_tokens)) if given else r.max_new_tokens
    samples = max(1, train_prompts * (1 if given else r.answers))
    answers = samples * answer
    if r.token_budget is not None and answers > r.token_budget and not given:
        samples = max(1, round(samples * r.token_budget / answers))
        answers = r.token_budget
    prompts = round(samples * prompt_tokens), round(heldout_prompts * prompt_tokens)
    heldout = heldout_prompts * r.max_new_tokens
    length = min(t.max_length, max(1, round((answers + prompts[0]) / samples)))
    passes = round(samples * length * t.epochs * t.data_share)
    return Workload(
        train_prompts=train_prompts,
        heldout_prompts=heldout_prompts,
        samples=samples,
        sample_tokens=length,
        supervised=min(1.0, max(0.0, 1 - prompt_tokens / length)),
        prompt_tokens=prompts[1] if given else sum(prompts),
        response_tokens=heldout if given else answers + heldout,
        tokens=answers + heldout + sum(prompts),
        train_tokens=samples * length,
        train_token_passes=passes,
    )
