"""What an evaluation measures: the `evaluate` part of a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from eagle3.config import Strict

Ref = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[\w.@-]+$")]


class Evaluate(Strict):
    """A registered draft that is measured, and nothing trained."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    draft: Ref
    """Its id or its job's, or a registered name, whose champion (else newest) is meant."""
    against: Ref | None = None
    """Another one, measured beside it on the same prompts; `champion` is that of its own name."""
    count: Annotated[int, Field(ge=2, le=1000)] = 16
    """Held-out prompts, the first by id. Every answer must be the target's own, token for token."""
    max_new_tokens: Annotated[int, Field(ge=2, le=8192)] = 64
    """Cap on an answer."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """By how much of the other one's acceptance length it may lie below it, and be no worse."""
    parity: bool = False
    """Try it in the job's serving engines, too."""
