"""Drafts that are measured again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import Answer, Body
from jobs.evaluate_spec import Ref


class EvaluationBody(Body):
    """What a registered draft is measured on, and held against."""

    target: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """As a job's target; the draft's own when empty."""
    against: Ref | None = None
    """A draft that is measured beside it on the same prompts, named as in a path; `champion` is
    that of its own name."""
    prompts: dict[str, Any] | None = None
    """As a job's prompts; those that the draft was made with when empty."""
    count: Annotated[int, Field(ge=2, le=1000)] = 16
    """Held-out prompts, the first by id."""
    max_new_tokens: Annotated[int, Field(ge=2, le=8192)] = 64
    """Cap on an answer."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """By how much of the other one's acceptance length it may lie below it, and be no worse."""
    parity: bool = False
    """Try it in serving engines, too."""
    gates: dict[str, Any] | None = None
    """As a job's gates; losslessness alone when empty."""


class EvaluationView(Answer):
    """One evaluation of a draft; how far it is, its job says."""

    id: Annotated[str, Field(examples=["evl_01kb8m2v9x3tq7c5"])]
    job_id: str
    job_status: str
    draft_id: str
    against_id: str | None = None
    target: str
    result: dict[str, Any] | None = None
    """`tau`, `speedup`, `lossless`, their intervals and counts, `gates`, `parity` where it was
    asked for; and under `against` the same of the other draft, with `comparison` (better, no_worse,
    worse or undecided), `tau_gain` and `tau_gain_ci`. Empty until it was measured."""
    created_at: datetime
    finished_at: datetime | None = None


class EvaluationPage(Answer):
    """One page of a draft's evaluations, newest first."""

    data: list[EvaluationView]
    has_more: bool
    next: str | None = None
