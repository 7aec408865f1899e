"""Recipes and targets."""

from __future__ import annotations

from typing import Any

from api.schemas.base import Answer
from eagle3.plan import TargetShape


class RecipeView(Answer):
    """A recipe that ships with the project."""

    name: str
    recipe: dict[str, Any]
    """Every key with its value."""


class RecipeList(Answer):
    """Recipes by name."""

    data: list[RecipeView]


class Support(Answer):
    """Whether a model can be a target."""

    target: str
    supported: bool | None
    """Empty where its config cannot be read."""
    reason: str = ""
    """Why not, or why it is not known."""
    shape: TargetShape | None = None
    """Its sizes, when it is supported."""
