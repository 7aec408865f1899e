"""When a request is tried again, after what wait, and when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from eagle3.data.engines.client import API_KEY, Client, Retry
from eagle3.errors import BadInput, TargetUnavailable

Reply = Callable[[httpx.Request], httpx.Response]


class Waits(list[float]):
    """The waits that were asked for; none takes time."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)


def status(code: int, text: str = "said so", **headers: str) -> Reply:
    return lambda request: httpx.Response(code, text=text, headers=headers)


def broken(error: type[httpx.TransportError]) -> Reply:
    def raises(request: httpx.Request) -> httpx.Response:
        raise error("gone", request=request)

    return raises


OK: Reply = lambda request: httpx.Response(200, json={"n": 1})  # noqa: E731


def post(replies: list[Reply], waits: Waits, attempts: int = 4) -> Any:
    """What a request comes to that is answered by each reply in turn, the last one for ever."""
    left = list(replies)

    def answer(request: httpx.Request) -> httpx.Response:
        return (left.pop(0) if len(left) > 1 else left[0])(request)

    async def ask() -> Any:
        retry = Retry(attempts=attempts, base_s=1.0, cap_s=3.0, sleep=waits.sleep)
        transport = httpx.MockTransport(answer)
        async with Client("http://m/v1/", retry=retry, transport=transport) as client:
            return await client.post("completions", {}, lambda reply: reply["n"])

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "failure",
    [status(code) for code in (408, 425, 429, 500, 502, 503, 504)]
    + [broken(e) for e in (httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError)]
    + [status(200, "<html>"), status(200, "[]"), status(200, "{}")],
)
def test_what_may_pass_is_tried_again(failure: Reply) -> None:
    waits = Waits()
    assert post([failure, failure, OK], waits) == 1
    assert len(waits) == 2


def test_waits_double_with_jitter_up_to_a_cap() -> None:
    waits = Waits()
    with pytest.raises(TargetUnavailable, match="status 500: said so, 6 times in a row"):
        post([status(500)], waits, attempts=6)
    assert all(w / 2 <= waited <= w for waited, w in zip(waits, (1, 2, 3, 3, 3), strict=True))
    assert len(set(waits)) == 5


def test_the_server_may_ask_for_longer_but_not_for_ever() -> None:
    waits = Waits()
    failures = [status(429, **{"Retry-After": t}) for t in ("17", "9999", "tomorrow")]
    assert post([*failures, OK], waits) == 1
    assert waits[:2] == [17.0, 120.0]
    assert waits[2] <= 3


@pytest.mark.parametrize("code", [400, 404, 422, 501])
def test_a_refused_request_is_not_repeated(code: int) -> None:
    waits = Waits()
    with pytest.raises(BadInput, match=f"refuses the request .status {code}.: said so"):
        post([status(code)], waits)
    assert waits == []


def test_a_redirect_is_not_followed() -> None:
    with pytest.raises(BadInput, match="sends elsewhere"):
        post([status(307, Location="http://elsewhere/")], Waits())


def test_the_key_is_not_repeated_even_if_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "sesame")
    with pytest.raises(BadInput, match=r"Bearer \*\*\*"):
        post([lambda r: httpx.Response(400, text=r.headers["Authorization"])], Waits())


def test_a_busy_server_is_waited_for_while_others_get_through() -> None:
    """One request is told nine times to come later; another is answered each time in between."""
    waits, count = Waits(), 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal count
        if request.url.path.endswith("other"):
            return httpx.Response(200, json={"n": 2})
        count += 1
        return httpx.Response(200, json={"n": 1}) if count > 9 else httpx.Response(429)

    async def ask() -> int:
        transport = httpx.MockTransport(answer)

        async def other(seconds: float) -> None:
            await client.post("other", {}, lambda reply: None)

        retry = Retry(attempts=3, sleep=other)
        async with Client("http://m/v1", retry=retry, transport=transport) as client:
            return await client.post("completions", {}, lambda reply: reply["n"])

    assert asyncio.run(ask()) == 1
    with pytest.raises(TargetUnavailable, match="status 429"):
        post([status(429)], waits)
