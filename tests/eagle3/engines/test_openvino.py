"""OpenVINO GenAI: what is refused without one, and golden checkpoints where there is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3.engines.engine import Drafted, Running, Sampling, Settings
from eagle3.engines.environments import Environment
from eagle3.engines.openvino import OpenVino, RunningOpenVino
from eagle3.errors import BadInput
from tests.eagle3.engines.checkpoints import Checkpoint, Family, build

INSTALLED = Environment("openvino").missing() is None
real = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not INSTALLED, reason="eagle3 engines install openvino"),
]
NEW = 17


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"))


def start(checkpoint: Checkpoint, tokens: int) -> Running:
    settings = Settings(tokens, context=128, threads=1, ready_seconds=600)
    work = checkpoint.target.parent / "work"
    return OpenVino().start(checkpoint.target, checkpoint.draft, settings, work)


def test_without_an_environment_it_says_how_to_make_one(
    golden: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_ENGINES", str(tmp_path))
    with pytest.raises(BadInput, match="not installed") as raised:
        OpenVino().start(golden.target, golden.draft, Settings(), tmp_path / "work")
    assert raised.value.hint == "eagle3 engines install openvino"


def test_a_type_that_it_does_not_serve_is_refused(
    golden: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenVino, "missing", lambda self: None)
    with pytest.raises(BadInput, match="does not serve bfloat16"):
        OpenVino().start(golden.target, None, Settings(dtype="bfloat16"), tmp_path)


def test_a_temperature_is_refused_with_a_draft() -> None:
    server: Any = SimpleNamespace(log=Path("log"))
    running = RunningOpenVino(server, "http://127.0.0.1:9", draft_tokens=3)
    with pytest.raises(BadInput, match=r"at temperature 0\.5: .* do not follow"):
        running.generate([[1]], Sampling(4, temperature=0.5))


class TestReal:
    pytestmark = real

    @pytest.mark.parametrize(("family", "slot", "chain"), [("llama", None, 4), ("qwen3", 1, 3)])
    def test_acceptance_is_exact(
        self, tmp_path: Path, family: Family, slot: int | None, chain: int
    ) -> None:
        golden, prompts = build(tmp_path, family, slot), 3
        asked = golden.prompts(prompts)
        with start(golden, chain) as running:
            answers = running.generate(asked, Sampling(1 + 3 * (chain + 1)))
            drafted = running.metrics()
        assert [a.tokens for a in answers] == [
            golden.chain(p[-1], len(answers[0].tokens)) for p in asked
        ]
        rounds = 2 * prompts  # of three each, which its own counts leave one out of
        assert drafted == Drafted(rounds, rounds * chain, rounds * chain)

    def test_the_target_alone_drafts_nothing(self, golden: Checkpoint) -> None:
        with start(golden, 0) as running:
            [answer] = running.generate(golden.prompts(1), Sampling(NEW))
            assert running.metrics() == Drafted()
        assert answer.tokens == golden.chain(golden.prompts(1)[0][-1], NEW)
