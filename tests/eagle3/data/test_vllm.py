"""Answers from a real vLLM, in an environment of its own (docs/engines.md says how to make it)."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle3.errors import BadInput
from tests.servers import free_port
from tests.tiny import Tiny, build_permutation_target, write_prompts

PYTHON = os.environ.get("UPDRAFT_VLLM_PYTHON", "")
CERTAINTY = 4.0
START_S = 600

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="UPDRAFT_VLLM_PYTHON names no Python that has vLLM"),
]
STAGES = ("resolve", "prepare", "regenerate")


@dataclass(frozen=True)
class Vllm:
    tiny: Tiny
    url: str


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """A server of a permutation target whose generation config asks for anything but its own
    distribution: vLLM takes its defaults from there."""
    folder = tmp_path_factory.mktemp("vllm")
    tiny = build_permutation_target(folder / "target", vocab=128, ends=True, certainty=CERTAINTY)
    unlike = {"eos_token_id": 1, "do_sample": True, "top_k": 1, "repetition_penalty": 1.5}
    (tiny.path / "generation_config.json").write_text(json.dumps(unlike))
    port = free_port()
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny.path)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}/v1"
            _wait(server, url, folder / "log")
            yield Vllm(tiny, url)
        finally:
            _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, and end it and its engine process where it does not."""
    server.terminate()
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{url}/models", timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(1)
    pytest.fail(f"vLLM did not start:\n{log.read_text()[-3000:]}")


def asked(make_run: Any, vllm: Vllm, folder: Path, target: Tiny | None = None, **more: Any) -> Any:
    source = write_prompts(folder / "p.jsonl", vllm.tiny.prompts(123)[-64:])
    settings = {"engine": "openai", "base_url": vllm.url, "max_new_tokens": 12, "concurrency": 16}
    path = (target or vllm.tiny).path
    return make_run(target=path, source=source, regenerate={**settings, **more})


def test_greedy_answers_are_the_targets_own(make_run, vllm, tmp_path):
    run = asked(make_run, vllm, tmp_path)
    summary = run.run(*STAGES)
    responses = run.lines("regenerate", "responses.jsonl")
    assert len(responses) == 64
    for response in responses:
        [[start, end]] = response["spans"]
        assert response["ids"][start:end] == vllm.tiny.chain(response["ids"][start - 1], 12)
    assert {r["finish"] for r in responses} == {"eos", "length"}
    assert (summary["not_round_trip"], summary["retries"]) == (0, 0)
    assert summary["served"]["tokenizer"] == "compared"
    assert summary["served"]["largest_gap"] == 0


def test_sampled_answers_follow_the_targets_distribution(make_run, vllm, tmp_path):
    """Each word leads to its successor with a known probability, whatever the defaults there."""
    settings = {"answers": 4, "temperature": 1.0, "further_temperature": 1.0}
    run = asked(make_run, vllm, tmp_path, **settings)
    run.run(*STAGES)
    pairs = [
        (response["ids"][i - 1], response["ids"][i])
        for response in run.lines("regenerate", "responses.jsonl")
        for start, end in response["spans"]
        for i in range(start, end)
        if response["split"] == "train"
    ]
    share = sum(vllm.tiny.perm[a] == b for a, b in pairs) / len(pairs)
    expected = math.exp(CERTAINTY) / (math.exp(CERTAINTY) + 127)
    assert len(pairs) > 1000
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(pairs))


def test_another_target_is_refused(make_run, vllm, tmp_path):
    other = build_permutation_target(tmp_path / "other", vocab=128, seed=1, certainty=CERTAINTY)
    run = asked(make_run, vllm, tmp_path, target=other)
    with pytest.raises(BadInput, match=r"'tiny' is not the target: after .* it writes"):
        run.run(*STAGES)
