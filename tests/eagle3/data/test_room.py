"""What does not fit this machine is said before anything long has begun."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from eagle3.config import RunConfig, load_recipe
from eagle3.data import room
from eagle3.errors import BadInput, DiskFull
from eagle3.plan import Hardware, hardware
from tests.tiny import build_random_target

FACTS = {
    "parameters": 10_000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 64,
    "num_layers": 8,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(target="demo", recipe=load_recipe("quick"))


def machine(memory: float) -> Hardware:
    return hardware("cpu", 1, memory)


@pytest.mark.parametrize(("share", "outcome"), [(1.1, "fits"), (0.8, "warned"), (0.5, "refused")])
def test_memory(
    share: float,
    outcome: str,
    target: Path,
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = room.plan_here(config, target, FACTS, 1000).modes[0].memory_bytes
    monkeypatch.setattr(room, "this_machine", lambda: machine(share * need))
    warnings: list[str] = []
    if outcome == "refused":
        with pytest.raises(BadInput, match=r"may need .* GB of memory") as e:
            room.check_room(tmp_path, config, target, FACTS, 1000, warnings.append)
        assert "train.batch_tokens" in e.value.hint
    else:
        room.check_room(tmp_path, config, target, FACTS, 1000, warnings.append)
        assert len(warnings) == (outcome == "warned")


def test_only_stored_features_need_the_disk(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10**8))

    def check(**extract: Any) -> None:
        recipe = load_recipe("standard", {"extract": extract})
        config = RunConfig(target="demo", recipe=recipe)
        room.check_room(tmp_path, config, target, FACTS, 10**6, lambda text: None)

    with pytest.raises(DiskFull, match="needs up to"):
        check()
    check(mode="online")


def test_a_family_that_is_not_counted_has_been_read(target: Path, config: RunConfig) -> None:
    (target / "config.json").write_text('{"model_type": "unheard_of"}')
    plan = room.plan_here(config, target, FACTS, 1000)
    assert plan.target.parameters == 10_000
