"""llama.cpp: the same tokens with and without a draft, and what goes wrong when it starts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.draft import Draft, DraftConfig
from eagle3.engines import known, llamacpp
from eagle3.engines.engine import Answer, Sampling, Settings
from eagle3.engines.known import UntestedVersion
from eagle3.engines.llamacpp import LlamaCpp
from eagle3.engines.native import Native
from eagle3.errors import BadInput, EngineFailed
from eagle3.export import official
from eagle3.load import load_config
from eagle3.target import default_capture_layers
from tests.eagle3.engines.checkpoints import Checkpoint, build
from tests.tiny import EOS, Tiny, build_permutation_target

SETTINGS = Settings(3, context=128, threads=1)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A target whose answers end, and beside it a draft that guesses at random."""
    folder = tmp_path_factory.mktemp("tiny")
    made = build_permutation_target(folder / "target", ends=True, certainty=3.0)
    config = load_config(made.path)
    torch.manual_seed(0)
    embed = torch.randn(config.vocab_size, config.hidden_size)
    layers = default_capture_layers(config.num_hidden_layers)
    draft = Draft(DraftConfig.for_target(config, layers, config.vocab_size), embed)
    draft.set_vocab(torch.arange(config.vocab_size))
    official.save(draft, folder / "draft", config.num_hidden_layers, torch.float32)
    return made


def asked(engine: Any, tiny: Tiny, tokens: int, sampling: Sampling) -> list[Answer]:
    folder = tiny.path.parent
    draft = folder / "draft" if tokens else None
    settings = Settings(tokens, context=128, threads=1)
    prompts = [tiny.order[i : i + 4] for i in (0, 20, 40, 50)]
    with engine.start(tiny.path, draft, settings, folder / "work") as running:
        answers: list[Answer] = running.generate(prompts, sampling)
        return answers


@pytest.mark.slow  # its converter imports torch and transformers
def test_a_draft_changes_no_token_greedy_or_drawn(tiny: Tiny) -> None:
    texts = set()
    for sampling in (Sampling(30), Sampling(30, temperature=1.0, seed=5)):
        plain = asked(LlamaCpp(), tiny, 0, sampling)
        drafted = asked(LlamaCpp(), tiny, 3, sampling)
        assert [a.tokens for a in plain] == [a.tokens for a in drafted]
        texts |= {a.tokens for a in plain}
    assert len(texts) > 4


@pytest.mark.slow
def test_answers_end_as_ours_do(tiny: Tiny) -> None:
    there = asked(LlamaCpp(), tiny, 3, Sampling(30))
    here = asked(Native(), tiny, 3, Sampling(30))
    assert [a.tokens for a in there] == [a.tokens for a in here]
    assert any(a.tokens[-1] == EOS for a in there)


def test_a_port_that_is_taken(golden: Checkpoint, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(port=taken.getsockname()[1])
        with pytest.raises(BadInput, match=f"port {settings.port}"):
            LlamaCpp().start(golden.target, golden.draft, settings, tmp_path)


def test_what_to_install(golden: Checkpoint, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(llamacpp, "installed", lambda name: None)
    with pytest.raises(BadInput, match="not installed") as refused:
        LlamaCpp().start(golden.target, golden.draft, SETTINGS, tmp_path)
    assert "updraft[worker]" in refused.value.hint


def test_one_that_dies_while_it_loads(golden: Checkpoint, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "t.gguf").write_bytes(b"GGUF, but no more of it")
    monkeypatch.setattr(llamacpp, "_target_file", lambda *_: tmp_path / "t.gguf")
    with pytest.raises(EngineFailed, match=r"llamacpp died while it loaded \(exit code 1\)") as e:
        LlamaCpp().start(golden.target, None, SETTINGS, tmp_path)
    assert "Failed to init server" in str(e.value)  # llama.cpp's own lines may come later than this
    assert "llamacpp.log" in e.value.hint


def test_a_version_that_was_not_tested(
    golden: Checkpoint, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(LlamaCpp, "version", lambda self: "2027.1.1")
    monkeypatch.setattr(llamacpp, "choose_port", _end)
    with (
        pytest.warns(UntestedVersion, match=r"2027\.1\.1 was not tested; tested: 2026\.10\.11549"),
        pytest.raises(StopIteration),
    ):
        LlamaCpp().start(golden.target, golden.draft, SETTINGS, tmp_path)
    assert known.untested("llamacpp", "2026.10.11549") is None
    assert known.untested("vllm", "0.32.0+cpu") is None
    assert known.untested("vllm", "0.31.9") is not None


def test_a_setting_that_is_none(golden: Checkpoint, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(llamacpp, "_target_file", lambda *_: tmp_path)
    with pytest.raises(BadInput, match="'n_batch' is no setting"):
        LlamaCpp().start(golden.target, None, Settings(extra=("n_batch",)), tmp_path)


def _end(_: object) -> int:
    raise StopIteration
