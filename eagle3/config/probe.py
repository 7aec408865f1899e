"""What the stage `probe` is told: which drafts to try on a target, and how long."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from eagle3.config.reference import Strict


class ProbedDraft(Strict):
    """A draft on this machine, with the tree that its registered figures were measured with."""

    id: str
    path: str
    """A directory in the official layout; its `fingerprint.json` says what it was made for."""
    depth: Annotated[int, Field(ge=1)] = 3
    top_k: Annotated[int, Field(ge=1)] = 1
    total_tokens: Annotated[int, Field(ge=1)] | None = None


class ProbeConfig(Strict):
    """Drafts to try, on how many held-out prompts."""

    drafts: tuple[ProbedDraft, ...] = ()
    prompts: Annotated[int, Field(ge=1)] = 16
    max_new_tokens: Annotated[int, Field(ge=2)] = 64
    spot_checks: Annotated[int, Field(ge=1)] = 4
    """Prompts whose text is compared with the target's own."""
    compare: bool = False
    """Hold the first draft against the second, prompt by prompt."""
    parity: bool = False
    """Try the first draft in the recipe's engines, too."""
