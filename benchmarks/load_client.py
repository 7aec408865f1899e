"""An HTTP client that takes little of the machine it measures on.

httpx looks at every connection with each request: with 64 of them it took more CPU time than the
service that it asked, and was late itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit


class Client:
    """HTTP/1.1 over kept connections; for answers that have a Content-Length.

    Args:
        url: what the paths follow.
        headers: of every request.
        most: connections at once; who finds none free waits.
    """

    def __init__(self, url: str, headers: Mapping[str, str], most: int) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._root = parts.hostname, parts.port, parts.path
        self._headers = {"Host": parts.netloc, **headers}
        self._free = asyncio.Semaphore(most)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _reader, writer in self._idle:
            writer.close()
            await writer.wait_closed()

    async def ask(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of an answer.

        Raises:
            RuntimeError: its status is not 2xx.
            OSError, EOFError: the connection broke, twice: a kept one may have ended meanwhile.
        """
        all_headers = {**self._headers, **(headers or {}), "Content-Length": str(len(body))}
        lines = [f"{method} {self._root}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in all_headers.items()]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
        async with self._free:
            try:
                status, answer = await self._exchange(request, kept=True)
            except (OSError, EOFError):
                status, answer = await self._exchange(request, kept=False)
        if not 200 <= status < 300:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode()[:500]}")
        return answer

    async def _exchange(self, request: bytes, *, kept: bool) -> tuple[int, bytes]:
        if kept and self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            answer = await reader.readexactly(int(fields["content-length"]))
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return int(head[0].split()[1]), answer
