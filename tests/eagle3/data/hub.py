"""A hub of data sets in a few lines: what the real clients ask of it, over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """One data set, `org/set`."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    gated: bool = False
    url: str = ""
    tokens: set[str | None] = field(default_factory=set)
    """Authorization headers that came."""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.tokens.add(self.headers.get("Authorization"))
        api = "/api/datasets/org/set"
        if "/org/set" not in path:
            self._refuse("RepoNotFound")
        elif path.startswith(f"{api}/revision/"):
            if path.rsplit("/", 1)[-1] in ("main", hub.commit):
                names = [{"rfilename": name} for name in hub.files]
                self._json({"id": "org/set", "sha": hub.commit, "siblings": names})
            else:
                self._refuse("RevisionNotFound")
        elif hub.gated:
            self._refuse("GatedRepo", 403)
        elif path.startswith(f"{api}/tree/"):
            self._json([self._entry(name) for name in hub.files])
        elif (name := path.split("/", 6)[-1]) in hub.files:
            tag = {"ETag": f'"{self._entry(name)["oid"]}"', "X-Repo-Commit": hub.commit}
            self._answer(200, hub.files[name], tag)
        else:
            self._refuse("EntryNotFound")

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.hub.files[name]
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: str, status: int = 404) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
