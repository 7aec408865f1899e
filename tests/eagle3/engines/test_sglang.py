"""SGLang without an SGLang: what it is asked, what is made of its answers; on a GPU, a real one.

What its own code makes of our command line and our drafts: `test_sglang_wheel.py`.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3.engines.engine import Drafted, Sampling, Settings
from eagle3.engines.environments import Environment
from eagle3.engines.pair import target_config
from eagle3.engines.sglang import RunningSglang, Sglang, arguments
from eagle3.errors import BadInput
from tests.eagle3.engines.checkpoints import Checkpoint, Family, build

ENDS = [
    {
        "spec_verify_ct": 4,
        "spec_num_proposed_drafts": 12,
        "spec_num_correct_drafts": 5,
        "spec_correct_drafts_histogram": [1, 2, 0, 1],
    },
    {
        "spec_verify_ct": 1,
        "spec_num_proposed_drafts": 3,
        "spec_num_correct_drafts": 0,
        "spec_correct_drafts_histogram": [1],
    },
    None,  # a prompt whose first token ended the answer
]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"))


class Answers(BaseHTTPRequestHandler):
    """Streams as its `serving_completions.py` does: tokens by the chunk, and at the end figures."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        number = body["prompt"][0]
        events: list[dict[str, Any]] = [
            {"choices": [{"text": "", "token_ids": [number, number + 1]}], "sglext": None},
            {"choices": [{"text": "", "token_ids": None}], "sglext": None},
        ]
        if ENDS[number] is not None:
            events.append({"choices": [], "sglext": {"spec_tokens_details": ENDS[number]}})
        self.send_response(200)
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None: ...


def test_what_was_drafted_is_added_up_over_answers() -> None:
    asked: list[dict[str, Any]] = []
    with HTTPServer(("127.0.0.1", 0), type("Asked", (Answers,), {"asked": asked})) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        process: Any = SimpleNamespace(log=Path("log"))
        running = RunningSglang(process, f"http://127.0.0.1:{server.server_port}", slots=2)
        answers = running.generate([[0], [1], [2]], Sampling(9, temperature=0.5, seed=3))
        server.shutdown()
    assert [a.tokens for a in answers] == [(0, 1), (1, 2), (2, 3)]
    assert running.metrics() == Drafted(5, 15, 5, (3, 1, 1))
    [first, *_] = sorted(asked, key=lambda body: body["prompt"])
    expected = {"model": "target", "max_tokens": 9, "temperature": 0.5, "seed": 3, "stream": True}
    expected |= {"return_token_ids": True, "return_spec_tokens_details": True}
    assert {key: first[key] for key in expected} == expected


def test_no_draft_is_not_spoken_of(golden: Checkpoint) -> None:
    config = target_config(golden.target)
    said = arguments(golden.target, None, Settings(draft_tokens=3), 80, config)
    assert not [word for word in said if word.startswith("--speculative")]


def test_without_an_environment_it_says_how_to_make_one(
    golden: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_ENGINES", str(tmp_path))
    with pytest.raises(BadInput, match="not installed") as raised:
        Sglang().start(golden.target, golden.draft, Settings(), tmp_path / "work")
    assert raised.value.hint == "eagle3 engines install sglang"


@pytest.mark.gpu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("family", "slot"), [("llama", None), ("qwen3", 0), ("llama", 2)])
def test_acceptance_is_exact_in_a_real_one(
    tmp_path: Path, family: Family, slot: int | None
) -> None:
    Environment("sglang").install(lambda said: None)
    golden, prompts = build(tmp_path, family, slot), 4
    settings = Settings(
        draft_tokens=3, context=128, slots=4, memory_gib=0.5, ready_seconds=900,
        extra=("--attention-backend", "triton"),  # others take no head as narrow as these
    )  # fmt: skip
    with Sglang().start(golden.target, golden.draft, settings, tmp_path / "work") as running:
        asked = golden.prompts(prompts)
        answers = running.generate(asked, Sampling(13))
        drafted = running.metrics()
    assert [a.tokens for a in answers] == [golden.chain(p[-1], 13) for p in asked]
    rounds = prompts * 3
    assert drafted == Drafted(rounds, rounds * 3, rounds * 3, (rounds,) * 3)
