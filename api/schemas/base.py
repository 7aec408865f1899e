"""What every answer is made from, and how a refusal looks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of every answer, which a row of the same names becomes by `model_validate`; a client
    ignores members it does not know."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, use_attribute_docstrings=True, from_attributes=True
    )


class Body(BaseModel):
    """Base of what a request may carry; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ProblemError(Answer):
    """One thing wrong with a request."""

    pointer: Annotated[str, Field(examples=["#/overrides/train/epochs"])]
    """JSON pointer into the body; `query/limit` or `header/...` for what is not in the body."""
    detail: str


class Problem(Answer):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str = ""
    request_id: str = ""
    errors: list[ProblemError] = Field(default_factory=list)
