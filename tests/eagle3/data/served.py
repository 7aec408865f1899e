"""A small real HTTP server that serves a permutation target as vLLM would, or otherwise, and fails
when it is told to."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from transformers import PreTrainedTokenizerBase

from eagle3.target import load_tokenizer
from tests.tiny import EOS, Tiny

NAME = "tiny"

Failure = Callable[["Handler"], None]
"""Answers a request in place of the server."""


@dataclass
class Served:
    """What the server serves, how it speaks, and what it was asked."""

    tiny: Tiny
    way: str = "token_ids"
    """Or `logprobs`, `content` (llama.cpp's log-probabilities) or `text`."""
    names: tuple[str, ...] = (NAME,)
    context: int = 256
    tokenizes: bool = True
    takes_ids: bool = True
    key: str = ""
    shift: int = 0
    """Added to the token ids that the tokenise endpoint gives."""
    on_completion: Failure | None = None
    """Called before each completion; raises `Answered` when it has answered."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(self.tiny.path)
        self.lock = threading.Lock()


class Answered(Exception):
    """A failure was sent in place of an answer."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def do_GET(self) -> None:
        if self._refused():
            return
        entries = [{"id": n, "max_model_len": self.served.context} for n in self.served.names]
        self.send(200, {"object": "list", "data": entries})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize" and self.served.tokenizes:
            ids = self.served.tokenizer(body["prompt"], add_special_tokens=False).input_ids
            self.send(200, {"tokens": [i + self.served.shift for i in ids]})
        elif self.path == "/v1/completions":
            if self._refused():
                return
            with self.served.lock:
                self.served.bodies.append(body)
            try:
                if self.served.on_completion is not None:
                    self.served.on_completion(self)
                self._complete(body)
            except Answered:
                return
        else:
            self.send(404, {"detail": "Not Found"})

    def send(self, status: int, body: Any, **headers: str) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked has gone
            self.wfile.write(payload)

    def fail(self, status: int, message: str = "injected", **headers: str) -> None:
        self.send(status, {"error": {"message": message}}, **headers)
        raise Answered

    def end(self, choice: dict[str, Any]) -> None:
        """Answer with a choice that is not the target's."""
        self.send(200, {"choices": [choice]})
        raise Answered

    def cut(self) -> None:
        """Close the connection in the middle of an answer."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices"')
        self.close_connection = True
        raise Answered

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _refused(self) -> bool:
        key = self.served.key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.send(401, {"error": f"wrong key {self.headers.get('Authorization')}"})
            return True
        return False

    def _complete(self, body: dict[str, Any]) -> None:
        served, prompt = self.served, body["prompt"]
        if body["model"] not in served.names:
            self.fail(404, f"The model `{body['model']}` does not exist.")
        if isinstance(prompt, str):
            prompt = served.tokenizer(prompt, add_special_tokens=False).input_ids
        elif not served.takes_ids:
            self.fail(400, "prompt must be a string")
        ids = served.tiny.chain(prompt[-1], body["max_tokens"])
        choice = {
            "finish_reason": "stop" if ids[-1] == EOS else "length",
            "text": served.tokenizer.decode(ids, skip_special_tokens=False),
        } | _told(served, ids, body)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        self.send(200, {"choices": [choice], "usage": usage})


def _told(served: Served, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
    """The ids of an answer, as the server that is played tells them."""
    asked = "logprobs" in body
    match served.way:
        case "token_ids" if body.get("return_token_ids"):
            return {"token_ids": ids}
        case "logprobs" if asked and body["return_tokens_as_token_ids"]:
            return {"logprobs": {"tokens": [f"token_id:{i}" for i in ids]}}
        case "content" if asked:
            plain = [i for i in ids if i != EOS]
            return {"logprobs": {"content": [{"id": i, "token": "?"} for i in plain]}}
    return {"logprobs": None}


@contextlib.contextmanager
def serve(served: Served) -> Iterator[Served]:
    """Serve until the end of the block."""
    handler = type("Bound", (Handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
