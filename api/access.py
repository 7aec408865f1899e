"""What a request leaves behind: a line in the log (full mode), and a span where these are sent."""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs import tracing

log = logging.getLogger(__name__)

QUIET = frozenset({"/livez", "/readyz", "/metrics"})
"""Asked every few seconds by machines; they leave nothing."""


class Access:
    """ASGI middleware, inside the one that gives requests their id.

    Args:
        lines: whether to log each request. Paths hold ids only; the query is left out.
    """

    def __init__(self, app: ASGIApp, *, lines: bool) -> None:
        self.app = app
        self.lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self.app(scope, receive, send)
            return
        status, began = 500, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        request_id = scope.get("state", {}).get("request_id", "")
        facts = {"method": scope["method"], "path": scope["path"], "request_id": request_id}
        parent = Headers(scope=scope).get(tracing.PLACE)
        with tracing.span(f"{scope['method']} {scope['path']}", parent, **facts) as note:
            try:
                await self.app(scope, receive, watched)
            finally:
                note(status=status)
                if self.lines:
                    ms = round((time.monotonic() - began) * 1000)
                    more = {"status": status, "ms": ms, **tracing.here()}
                    log.info("request", extra={**facts, **more})
