"""What an engine behind HTTP says when its server refuses, hangs or dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.engines.engine import Sampling
from eagle3.engines.http import openai
from eagle3.engines.process import Server, answers_ok, choose_port
from eagle3.engines.served import Counting, Served
from eagle3.errors import EngineFailed

TOY = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Toy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("asked", asked["prompt"], flush=True)
        if asked["prompt"] == [1]:
            time.sleep(60)
        if asked["prompt"] == [2]:
            print("assertion failed: x", flush=True)
            os._exit(7)
        self.send_response(422)
        self.end_headers()
        self.wfile.write(b"too long")

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Toy).serve_forever()
"""


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Served]:
    port = choose_port()
    url = f"http://127.0.0.1:{port}"
    server = Server("toy", [sys.executable, "-c", TOY, str(port)], tmp_path / "log")
    server.wait(answers_ok(f"{url}/health"), 60)
    with Counting(server, url, openai("m"), slots=2) as served:
        yield served


def test_one_that_refuses(toy: Served) -> None:
    with pytest.raises(EngineFailed, match=r"toy refused: status 422: too long"):
        toy.generate([[3]], Sampling(1))


def test_one_that_hangs(toy: Served) -> None:
    with pytest.raises(EngineFailed, match=r"did not finish an answer within 0\.3 s") as failed:
        toy.generate([[1]], Sampling(1, timeout_seconds=0.3))
    assert failed.value.exit_code == 5


def test_one_that_dies(toy: Served) -> None:
    with pytest.raises(EngineFailed, match=r"toy died while it answered .*\(exit code 7\)") as e:
        toy.generate([[2]], Sampling(1))
    assert "assertion failed: x" in str(e.value)


def test_one_without_metrics(toy: Served) -> None:
    with pytest.raises(EngineFailed, match="gave no metrics"):
        toy.metrics()
