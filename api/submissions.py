"""What every route that takes a submission asks for, and what it answers with."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response

from api.auth import Caller
from jobs.errors import IdempotencyKeyMissing
from jobs.service import Submission

POLL_S = 2
"""What an answer about an unfinished job suggests to wait before asking again."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A repeat with the same key and body answers with the same job and "
        "`Idempotent-Replayed: true`; with another body, 422.",
        examples=["attach-acme/model-4f2a91"],
    ),
]


def check_key(caller: Caller, key: str | None) -> None:
    """Raises IdempotencyKeyMissing: a program's API key submits without one."""
    if caller.idempotency_required and key is None:
        raise IdempotencyKeyMissing(
            "this API key is a program's: send an Idempotency-Key that names what it submits for"
        )


def answer(response: Response, submission: Submission, location: str) -> None:
    """Say where the answer to a submission is to be found, and whether it was one already."""
    response.headers["location"] = location
    response.headers["retry-after"] = str(POLL_S)
    if submission.replayed:
        response.headers["idempotent-replayed"] = "true"
