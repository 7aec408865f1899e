"""`eagle3 serve`: what it refuses; a server answers its own curl line and leaves nothing behind."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from eagle3.engines import serve
from eagle3.engines.engine import Running, Settings
from eagle3.engines.serve import Asked
from eagle3.errors import BadInput, StageError
from tests.eagle3.engines.checkpoints import Checkpoint, build
from tests.processes import alive

LLAMA_CPP = Asked("llamacpp")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    found = build(tmp_path_factory.mktemp("golden"))
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (found.target / "chat_template.jinja").write_text(template)
    return found


def refused(target: str | Path, draft: Path, asked: Asked = LLAMA_CPP) -> StageError:
    with pytest.raises(BadInput) as error, serve.start(str(target), draft, asked, lambda _: None):
        pass
    return error.value


def bundle(made: Checkpoint, folder: Path, **target: str) -> Path:
    """The files of a registered draft."""
    shutil.copytree(made.draft, folder / "draft")
    (folder / "target.json").write_text(json.dumps(target))
    broken = {"llamacpp": {"broken": "acceptance", "said": "position 0 accepts nothing"}}
    serving = {"num_speculative_tokens": 2, "engines": broken}
    (folder / "serving.json").write_text(json.dumps(serving))
    return folder


def test_what_is_not_there(made: Checkpoint, tmp_path: Path) -> None:
    assert "holds no draft" in str(refused(made.target, tmp_path))
    assert "no reference" in str(refused("not a target", made.draft))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in str(refused(made.target, made.draft, Asked("llamacpp", port=port)))


def test_an_engine_that_is_not_installed(
    made: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_ENGINES", str(tmp_path))
    error = refused(made.target, made.draft, Asked("vllm"))
    assert "not installed" in str(error)
    assert "eagle3 engines install vllm" in error.hint


def test_another_target_than_the_drafts_own(made: Checkpoint, tmp_path: Path) -> None:
    other = dict.fromkeys(("weights_sha256", "tokenizer_sha256", "config_sha256"), "0" * 64)
    assert "weights_sha256 was 0000" in str(refused(made.target, bundle(made, tmp_path, **other)))


def test_a_bundle_says_how_it_is_served(
    made: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[Path, Path, Settings]] = []

    class Stopped:
        def missing(self) -> None: ...

        def start(self, target: Path, draft: Path, settings: Settings, work: Path) -> Running:
            found.append((target, draft, settings))
            raise BadInput("far enough")

    monkeypatch.setattr(serve, "engine", lambda name: Stopped())
    monkeypatch.setenv("UPDRAFT_CACHE", str(tmp_path / "cache"))
    folder = bundle(made, tmp_path / "pulled")
    said: list[str] = []
    with pytest.raises(BadInput), serve.start(str(made.target), folder, LLAMA_CPP, said.append):
        pass
    [(target, draft, settings)] = found
    assert (target, draft) == (made.target, folder / "draft")
    assert (settings.draft_tokens, settings.dtype, settings.context) == (2, "float32", 256)
    assert any("not in parity in llamacpp: position 0 accepts nothing" in line for line in said)


def _in_ids(asked: Any, said: Any) -> tuple[int, list[int]]:
    return asked["prompt"][-1], said["tokens"]


def _in_text(asked: Any, said: Any) -> tuple[int, list[int]]:
    """All words of the question are the unknown one, `t0`."""
    text = said["choices"][0]["message"]["content"]
    return 0, [int(word.removeprefix("t")) for word in text.split()]


READ = {"llamacpp": _in_ids, "vllm": _in_text}
"""The prompt's last token and the answer, by engine: llama.cpp lacks the golden tokenizer."""


@pytest.mark.timeout(1800)
def test_it_answers_its_curl_line_and_leaves_nothing_behind(
    made: Checkpoint, tmp_path: Path, server: str
) -> None:
    words = [str(made.target), str(made.draft), "--engine", server, "--work", str(tmp_path)]
    words += ["--memory-gib", "0.25"]
    with subprocess.Popen(
        [sys.executable, "-m", "eagle3.cli", "serve", *words],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as after a shell's `&`
    ) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("curl"))
            asked = shlex.split(line)
            answer = subprocess.run(asked, capture_output=True, check=True, timeout=120)
            everyone = psutil.Process(process.pid).children(recursive=True)
            assert everyone
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()
    last, tokens = READ[server](json.loads(asked[-1]), json.loads(answer.stdout))
    assert tuple(tokens) == made.chain(last, len(tokens))
    assert len(tokens) > 8
    assert not alive(everyone)
