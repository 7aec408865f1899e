"""HTTP requests to a server of models: what may pass is tried again, what will not is an error."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx

from eagle3.errors import BadInput, StageError, TargetUnavailable

API_KEY = "UPDRAFT_ENGINE_API_KEY"
"""Environment variable of the server's key; it is sent to the server and shown nowhere."""

T = TypeVar("T")

CONNECT_S = 10.0
BUSY = frozenset({429, 503})
"""Statuses that say "later": patience lasts as long as other requests get through."""
PASSING = frozenset({408, 409, 425}) | BUSY
MESSAGE_CHARS = 300


@dataclass(frozen=True)
class Retry:
    """How often and after what waits a request is tried again; about two minutes in all."""

    attempts: int = 10
    base_s: float = 0.5
    cap_s: float = 30.0
    asked_cap_s: float = 120.0
    """Cap on the wait that a server asks for (`Retry-After`)."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def wait_s(self, failures: int, asked_s: float) -> float:
        """Doubled each time, with jitter; at least what the server asked for."""
        most = min(self.cap_s, self.base_s * 2 ** (failures - 1))
        jittered = most * random.uniform(0.5, 1.0)  # noqa: S311 (spreads requests, no secret)
        return max(jittered, min(asked_s, self.asked_cap_s))


class Failed(Exception):
    """One attempt failed in a way that may pass."""

    def __init__(self, message: str, *, busy: bool = False, asked_s: float = 0.0) -> None:
        super().__init__(message)
        self.busy, self.asked_s = busy, asked_s


class Client:
    """Requests to one server.

    Args:
        base_url: the address up to `/v1`.
        timeout_s: longest wait for one reply.
        on_failure: told of each attempt that failed and is tried again.
    """

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int = 8,
        timeout_s: float = 120.0,
        retry: Retry | None = None,
        on_failure: Callable[[str], None] = lambda message: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._key = os.environ.get(API_KEY, "")
        self._retry = retry or Retry()
        self._on_failure = on_failure
        self._answered = 0
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            follow_redirects=False,  # the key and the prompts go to this server and no other
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, read: Callable[[Any], T]) -> T:
        """GET `base_url/path`; see `post`."""
        return await self._tried("GET", f"{self.base_url}/{path}", None, read)

    async def post(self, path: str, body: dict[str, Any], read: Callable[[Any], T]) -> T:
        """POST JSON to `base_url/path`, again and again while that may help.

        Args:
            read: makes the result of the reply's JSON; what it cannot read (KeyError, TypeError,
                IndexError, ValueError) counts as a failed attempt.

        Raises:
            TargetUnavailable: the server is away, too busy, or fails each time.
            BadInput: it refuses the request.
        """
        return await self._tried("POST", f"{self.base_url}/{path}", body, read)

    async def ask_root(self, path: str, body: dict[str, Any]) -> Any | None:
        """The JSON reply of an endpoint that servers may or may not have beside `/v1`, or None."""
        url = f"{self.base_url.removesuffix('/v1')}/{path}"
        try:
            return await self._tried("POST", url, body, lambda reply: reply)
        except BadInput:
            return None

    async def _tried(
        self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[Any], T]
    ) -> T:
        failures, answered = 0, self._answered
        while True:
            try:
                result = await self._once(method, url, body, read)
            except Failed as e:
                if e.busy and self._answered > answered:
                    failures = 0
                failures, answered = failures + 1, self._answered
                if failures >= self._retry.attempts:
                    raise TargetUnavailable(
                        f"{url}: {e}, {failures} times in a row",
                        "see to the server; the same command goes on from what is finished",
                    ) from None
                self._on_failure(str(e))
                await self._retry.sleep(self._retry.wait_s(failures, e.asked_s))
            else:
                self._answered += 1
                return result

    async def _once(
        self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[Any], T]
    ) -> T:
        try:
            reply = await self._http.request(method, url, json=body)
        except httpx.TransportError as e:
            said = f": {e}" if str(e) else ""
            raise Failed(f"no answer ({type(e).__name__}{said})") from None
        if reply.status_code != httpx.codes.OK:
            raise self._refusal(url, reply)
        try:
            return read(reply.json())
        except (KeyError, TypeError, IndexError, ValueError) as e:
            raise Failed(f"an answer that cannot be read ({type(e).__name__}: {e})") from None

    def _refusal(self, url: str, reply: httpx.Response) -> Failed | StageError:
        status, said = reply.status_code, self._message(reply)
        if status in PASSING or (status >= 500 and status != httpx.codes.NOT_IMPLEMENTED):
            asked = reply.headers.get("Retry-After", "")
            wait = float(asked) if asked.isdecimal() else 0.0
            return Failed(f"status {status}{said}", busy=status in BUSY, asked_s=wait)
        if status in (401, 403):
            return BadInput(
                f"{url} refuses the key (status {status})",
                f"set {API_KEY} to a key of that server" if not self._key else f"see {API_KEY}",
            )
        if 300 <= status < 400:
            return BadInput(f"{url} sends elsewhere (status {status})", "name the final base_url")
        return BadInput(f"{url} refuses the request (status {status}){said}")

    def _message(self, reply: httpx.Response) -> str:
        """What the server said, shortened, and without the key should it repeat it."""
        text = " ".join(reply.text.split())
        if self._key:
            text = text.replace(self._key, "***")
        text = text[:MESSAGE_CHARS]
        return f": {text}" if text else ""
