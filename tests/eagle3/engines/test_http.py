"""Prompts over HTTP, with a server of a few lines that streams."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from eagle3.engines.engine import Sampling
from eagle3.engines.http import Refused, answers, by_label, openai, parse_metrics, total


class Toy(BaseHTTPRequestHandler):
    """Counts on from a prompt's last token, two tokens an event; 13 is refused, 99 never ends."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state: Any = self.server
        state.asked.append(asked)
        last, most = asked["prompt"][-1], asked["max_tokens"]
        self.send_response(400 if last == 13 else 200)
        self.end_headers()
        if last == 13:
            self.wfile.write(b'{"error": "thirteen is\\n unlucky"}')
            return
        with state.lock:
            state.now += 1
            state.most = max(state.most, state.now)
        time.sleep(30 if last == 99 else 0.05)
        ids = [last + 1 + i for i in range(most)]
        for pair in (ids[i : i + 2] for i in range(0, most, 2)):
            self._event({"choices": [{"token_ids": pair}]})
        self._event({"choices": []})
        self.wfile.write(b": a comment\n\ndata: [DONE]\n\n")
        with state.lock:
            state.now -= 1

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def toy() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Toy)
    server.daemon_threads, server.block_on_close = True, False
    server.asked, server.lock, server.now, server.most = [], threading.Lock(), 0, 0
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(toy: Any, prompts: list[list[int]], sampling: Sampling, concurrency: int = 2) -> Any:
    return asyncio.run(answers(toy.url, openai("m"), prompts, sampling, concurrency))


def test_answers_come_in_the_order_of_the_prompts_and_so_many_at_once(toy: Any) -> None:
    got = ask(toy, [[100 * i] for i in range(1, 7)], Sampling(3))
    assert [a.tokens for a in got] == [(n + 1, n + 2, n + 3) for n in range(100, 700, 100)]
    assert toy.most == 2
    assert all(0.04 < a.first_token_seconds <= a.seconds for a in got)


def test_all_that_decides_an_answer_is_said(toy: Any) -> None:
    ask(toy, [[5, 6]], Sampling(1, temperature=0.5, top_p=0.9, top_k=7, seed=2**31 + 3))
    [asked] = toy.asked
    assert asked["prompt"] == [5, 6]
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.5, 0.9, 7)
    assert (asked["min_p"], asked["repetition_penalty"], asked["seed"]) == (0.0, 1.0, 3)
    assert (asked["model"], asked["ignore_eos"], asked["return_token_ids"]) == ("m", False, True)


def test_what_is_refused_is_said(toy: Any) -> None:
    with pytest.raises(Refused, match=r"status 400: .*thirteen is\\n unlucky"):
        ask(toy, [[1], [13], [2]], Sampling(3))


def test_one_that_hangs_is_not_waited_for(toy: Any) -> None:
    with pytest.raises((TimeoutError, httpx.TimeoutException)):
        ask(toy, [[1], [99]], Sampling(3, timeout_seconds=0.3))


def test_a_server_that_is_away(toy: Any) -> None:
    toy.url = "http://127.0.0.1:9"
    with pytest.raises(httpx.TransportError):
        ask(toy, [[1]], Sampling(3))


def test_metrics_text() -> None:
    found = parse_metrics(
        "# HELP a_total Some.\n# TYPE a_total counter\n\n"
        'a_total{pos="0",name="x \\"y\\", z"} 3.0\na_total{pos="1"} 4e0 1700000000\nb +Inf\n'
    )
    assert found["a_total"][0] == ({"pos": "0", "name": 'x "y", z'}, 3.0)
    assert total(found, "a_total") == 7
    assert by_label(found, "a_total", "pos") == {"0": 3, "1": 4}
    assert total(found, "b") == float("inf")
    assert total(found, "none") == 0
    with pytest.raises(ValueError, match="not a line"):
        parse_metrics("nonsense")
