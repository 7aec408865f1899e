"""Every refusal and failure leaves as RFC 9457 `application/problem+json`, from this one place."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from starlette.exceptions import HTTPException

from api.schemas import Problem, ProblemError
from jobs.errors import (
    Forbidden,
    Invalid,
    InvalidSpec,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    Unavailable,
    UpdraftError,
)

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:updraft:problem:"
"""`type` of a problem: this and a slug that docs/api.md lists."""

RETRY_AFTER_S = 5
"""What 429 and 503 answers ask a client to wait."""

ALWAYS = (401, 403, 413, 421, 422, 429, 503)
"""Statuses that any route may answer with."""

_ABOUT = {
    400: "The request could not be read.",
    401: "No API key, or one that is unknown, expired or revoked.",
    403: "The API key lacks the scope, or the request came from a foreign page.",
    404: "Nothing of yours has this id.",
    409: "Not possible in the present state.",
    413: "The body is too large.",
    421: "Embedded mode, and a Host that is not this machine.",
    422: "The request is understood but wrong; `errors` names each field.",
    411: "A body without a Content-Length.",
    412: "It has changed since the version that `If-Match` names.",
    429: "Too many requests, or jobs queued or running, for this key.",
    503: "Something the service leans on does not answer.",
}


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(UpdraftError, _on_updraft)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(OperationalError, _on_database)
    app.add_exception_handler(InterfaceError, _on_database)
    app.add_exception_handler(DataError, _on_value)
    app.add_exception_handler(Exception, _on_unexpected)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem answers of a route, for its OpenAPI description."""
    return {
        status: {
            "description": _ABOUT[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({*statuses, *ALWAYS})
    }


def problem(
    request: Request,
    *,
    status: int,
    slug: str,
    title: str,
    detail: str,
    errors: Sequence[ProblemError] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """A problem document that names this request."""
    request_id = getattr(request.state, "request_id", "")
    body = Problem(
        type=TYPE_PREFIX + slug,
        title=title,
        status=status,
        detail=detail,
        instance=request.url.path,
        request_id=request_id,
        errors=list(errors),
    ).model_dump()
    if not errors:
        del body["errors"]
    # The handler of last resort answers outside the middleware that sets this header.
    headers = {**(headers or {}), "x-request-id": request_id}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def _on_updraft(request: Request, error: Exception) -> Response:
    assert isinstance(error, UpdraftError)  # noqa: S101  registered for this class
    headers = {}
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="updraft"'
    if isinstance(error, Forbidden):
        headers["www-authenticate"] = 'Bearer realm="updraft", error="insufficient_scope"'
    if isinstance(error, QuotaExceeded | Unavailable):
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, RateLimited):
        headers["retry-after"] = str(error.retry_after_s)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request failed", exc_info=error)
    found = error.errors if isinstance(error, InvalidSpec) else []
    return problem(
        request,
        status=error.status,
        slug=error.slug,
        title=error.title,
        detail=_count(len(found)) if found else str(error),
        errors=[ProblemError(pointer=_pointer(e["pointer"]), detail=e["detail"]) for e in found],
        headers=headers,
    )


def _on_database(request: Request, error: Exception) -> Response:
    log.error("database failed", exc_info=error)
    return _on_updraft(request, Unavailable("the database does not answer; try again"))


def _on_value(request: Request, error: Exception) -> Response:
    log.info("the database cannot hold a value", exc_info=error)
    return _on_updraft(request, Invalid("a text or number in it cannot be stored; change it"))


def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  registered for this class
    found = error.errors()
    if broken := next((e for e in found if e["type"] == "json_invalid"), None):
        why = broken.get("ctx", {}).get("error", broken["msg"])
        return problem(
            request,
            status=400,
            slug="malformed",
            title="Malformed request",
            detail=f"The body is not JSON: {why} at character {broken['loc'][-1]}.",
        )
    return problem(
        request,
        status=422,
        slug="invalid",
        title="Invalid request",
        detail=_count(len(found)),
        errors=[_field(e) for e in found],
    )


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this class
    title = HTTPStatus(error.status_code).phrase
    return problem(
        request,
        status=error.status_code,
        slug=title.lower().replace(" ", "-"),
        title=title,
        detail=error.detail if error.detail != title else f"{request.method} {request.url.path}",
        headers=dict(error.headers or {}),
    )


def _on_unexpected(request: Request, error: Exception) -> Response:
    # The traceback is for the log; the caller gets the id that finds it there.
    request_id = getattr(request.state, "request_id", "")
    log.error("unexpected error in request %s", request_id, exc_info=error)
    return problem(
        request,
        status=500,
        slug="internal",
        title="Internal error",
        detail=f"Unexpected failure; look for {request_id} in the service's log.",
    )


def _field(error: dict[str, Any]) -> ProblemError:
    place, *path = [str(part) for part in error["loc"]] or ["body"]
    detail = str(error["msg"]).removeprefix("Value error, ")
    if place != "body":
        return ProblemError(pointer="/".join([place, *path]), detail=detail)
    return ProblemError(pointer="/".join(["#", *(_escaped(p) for p in path)]), detail=detail)


def _pointer(dotted: str) -> str:
    return "#" if dotted == "job" else "#/" + "/".join(_escaped(p) for p in dotted.split("."))


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _count(found: int) -> str:
    return "One field is wrong." if found == 1 else f"{found} fields are wrong."
