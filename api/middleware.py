"""What happens to every request before its route: an id, and refusal of what a page elsewhere sent.

Embedded mode has no keys, so a browser must not be able to reach it on behalf of a foreign page:
the Host must be a loopback name (DNS rebinding) and an Origin, where there is one, must be ours.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem
from jobs.ids import new_id

MAX_BODY = 1 << 20
"""Bytes of a request body. A job spec is small; prompts and weights never come this way."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Gatekeeper:
    """ASGI middleware.

    Args:
        local_only: refuse hosts that are not loopback and foreign origins (embedded mode).
    """

    def __init__(self, app: ASGIApp, *, local_only: bool) -> None:
        self.app = app
        self.local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id("req_")
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["x-request-id"] = request_id
                answer.update(scope["state"].get("rate_limit", {}))
            await send(message)

        if refused := self._refusal(scope["method"], headers):
            status, slug, detail = refused
            title = slug.replace("-", " ").capitalize()
            response = problem(Request(scope), status=status, slug=slug, title=title, detail=detail)
            await response(scope, receive, send_with_id)
            return
        await self.app(scope, receive, send_with_id)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str, str] | None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return 413, "content-too-large", f"A body may have {MAX_BODY} bytes at most."
        if method not in SAFE_METHODS and "chunked" in headers.get("transfer-encoding", ""):
            return 411, "length-required", "Send the body with a Content-Length."
        if not self.local_only:
            return None
        host = headers.get("host", "")
        if _split(f"//{host}").hostname not in LOOPBACK:
            return (
                421,
                "misdirected-request",
                f"Host {host!r} is not this machine. Embedded mode answers to loopback names only; "
                "full mode (UPDRAFT_MODE=full) serves others, with API keys.",
            )
        origin = headers.get("origin")
        if origin and method not in SAFE_METHODS and _split(origin).netloc != host:
            return 403, "forbidden", f"A page of {origin} may not change anything here."
        return None


def _split(url: str) -> SplitResult:
    """The parts of a URL that a stranger sent; none when it is not one."""
    try:
        return urlsplit(url)
    except ValueError:  # such as an unclosed bracket
        return urlsplit("")
