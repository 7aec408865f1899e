"""Which engines a run's draft must pass, and what is refused before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from eagle3.config import EngineName, RunConfig, load_recipe
from eagle3.engines.known import ENGINES
from eagle3.engines.llamacpp import LlamaCpp
from eagle3.errors import BadInput
from eagle3.export import gguf
from eagle3.parity.engines import LIGHT, choose, installed, settled
from eagle3.stages import STAGES

TARGET = Path("target")


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The targets that llama.cpp's converter was asked about; it takes all of them."""
    asked: list[Path] = []
    monkeypatch.setattr(gguf, "check_target", asked.append)
    return asked


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_target(target: Path) -> None:
        raise BadInput("llama.cpp's converter does not write it:\nunknown", "choose another")

    monkeypatch.setattr(gguf, "check_target", check_target)


def test_a_recipe_can_name_every_engine() -> None:
    assert set(get_args(EngineName)) == set(ENGINES)
    assert load_recipe("quick").engines == "auto"
    named = load_recipe("quick", {"engines": ["native", "vllm"]})
    assert named.engines == ("native", "vllm")


@pytest.mark.parametrize("engines", [[], ["turbo"], "llamacpp"])
def test_what_is_no_list_of_engines(engines: object) -> None:
    with pytest.raises(ValueError, match="engines"):
        load_recipe("quick", {"engines": engines})


def test_the_default_is_ours_and_llama_cpp(converted: list[Path]) -> None:
    found = choose("auto", TARGET, 10)
    assert (found.engines, found.left_out) == (["native", "llamacpp"], {})
    assert converted == [TARGET]


def test_ours_is_always_the_first(converted: list[Path]) -> None:
    assert choose(("llamacpp", "native"), TARGET, 10).engines == ["native", "llamacpp"]


@pytest.mark.usefixtures("refusing")
def test_of_the_default_it_is_left_out_and_where_it_is_named_refused() -> None:
    found = choose("auto", TARGET, 10)
    assert found.engines == ["native"]
    assert found.left_out == {"llamacpp": "llama.cpp's converter does not write it: unknown"}
    with pytest.raises(BadInput, match="converter"):
        choose(("llamacpp",), TARGET, 10)


def test_a_large_target_is_served_by_llama_cpp_where_it_is_named(converted: list[Path]) -> None:
    assert "2 B" in choose("auto", TARGET, LIGHT + 1).left_out["llamacpp"]
    assert not converted
    assert choose(("llamacpp",), TARGET, LIGHT + 1).engines == ["native", "llamacpp"]


def test_an_engine_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_ENGINES", str(tmp_path))
    with pytest.raises(BadInput, match="vllm, which is not installed") as error:
        choose(("native", "vllm"), TARGET, 10)
    assert error.value.hint == "eagle3 engines install vllm"


def test_llama_cpp_that_is_not_installed(
    converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaCpp, "missing", lambda self: "pip install it")
    assert choose("auto", TARGET, 10).left_out == {"llamacpp": "it is not installed here"}
    assert installed("auto").keys() == {"native"}
    with pytest.raises(BadInput, match="not installed"):
        choose(("llamacpp",), TARGET, 10)


def test_what_was_settled_is_not_asked_again(
    converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = choose(("llamacpp",), TARGET, 10).record()
    assert settled(("llamacpp",), TARGET, 10, earlier).engines == ["native", "llamacpp"]
    assert len(converted) == 1
    settled("auto", TARGET, 10, earlier)
    settled(("llamacpp",), TARGET, 10, None)
    assert len(converted) == 3
    monkeypatch.setattr(LlamaCpp, "missing", lambda self: "pip install it")
    with pytest.raises(BadInput, match="not installed"):
        settled(("llamacpp",), TARGET, 10, earlier)


def test_the_stage_runs_again_for_another_version_of_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = RunConfig(target="demo", recipe=load_recipe("quick"))
    before = STAGES["parity"].config_key(config)
    assert STAGES["parity"].config_key(config) == before
    monkeypatch.setattr(LlamaCpp, "version", lambda self: "another")
    assert STAGES["parity"].config_key(config) != before
