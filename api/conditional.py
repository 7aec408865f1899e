"""ETags: a hash of the answer, so that progress, which moves without a new version, counts too.

`If-None-Match` saves an answer that has not changed, `If-Match` refuses a change of what has.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import Header, Response

from api.schemas import Answer
from jobs.errors import PreconditionFailed

IfNoneMatch = Annotated[
    str | None, Header(max_length=1024, description="An ETag seen before; 304 if it still holds.")
]
IfMatch = Annotated[
    str | None,
    Header(max_length=1024, description="The ETag it must still have; 412 if it has another."),
]
UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "Unchanged since `If-None-Match`."}
}


def etag(answer: Answer) -> str:
    """The tag of an answer."""
    return f'"{hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:32]}"'


def tagged(answer: Answer, if_none_match: str | None, **headers: str) -> Response:
    """The answer with its tag, or 304 without a body."""
    tag = etag(answer)
    headers = {"etag": tag, "cache-control": "private, no-cache", **headers}
    if if_none_match and _names(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


def check_match(if_match: str | None, answer: Answer) -> None:
    """Refuse a change of another version than the caller has seen.

    Raises:
        PreconditionFailed: the answer has another tag now.
    """
    if if_match is not None and not _names(if_match, tag := etag(answer)):
        raise PreconditionFailed(f"it has changed: its ETag is {tag} now; read it again")


def _names(header: str, tag: str) -> bool:
    named = {one.strip().removeprefix("W/") for one in header.split(",")}
    return tag in named or "*" in named
