"""Stands between the service and its object store, and fails in the ways that stores do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from urllib.parse import urlsplit

ANSWER_500 = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
SLOW_S = 1.5
"""How long a slow store thinks about each connection's first bytes."""


class Mood(StrEnum):
    """How the store behaves."""

    WELL = "well"
    ERRORS = "answers 500"
    SLOW = "is slow"
    GONE = "is gone"


class Proxy:
    """A relay of TCP connections to one server; the mood holds from the next connection on, and
    those that are open are cut when it changes."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._mood = Mood.WELL
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def mood(self) -> Mood:
        return self._mood

    @mood.setter
    def mood(self, mood: Mood) -> None:
        self._mood = mood
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Until `close`."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def close(self) -> None:
        self.mood = Mood.GONE
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _handle(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._mood is Mood.GONE:
                return
            if self._mood is Mood.ERRORS:
                client.recv(1 << 16)
                client.sendall(ANSWER_500)
                return
            if self._mood is Mood.SLOW:
                time.sleep(SLOW_S)
            with socket.create_connection(self._upstream) as server:
                self._open |= {client, server}
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()
                self._open -= {client, server}


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, then tell the target."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy for the time of the block."""
    one = Proxy(upstream)
    threading.Thread(target=one.serve, daemon=True).start()
    try:
        yield one
    finally:
        one.close()
