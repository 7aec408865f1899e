"""The gate, on golden checkpoints: what holds, and which link is said to break."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from safetensors.torch import load_file, save_file

from eagle3.bench.prompts import HeldOut
from eagle3.engines.engine import Answer, Engine, Sampling, Settings
from eagle3.engines.known import engine
from eagle3.engines.native import Loaded, Native
from eagle3.errors import BadInput, EngineFailed
from eagle3.parity.check import Parity, check
from eagle3.parity.report import page
from tests.eagle3.engines.checkpoints import CAPTURE, Checkpoint, build

pytestmark = pytest.mark.usefixtures("quick_calibration")

TOKENS, DEPTH = 10, 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"), slot=1)


def run(made: Checkpoint, work: Path, *engines: Engine, plain: bool = False) -> Parity:
    prompts = [HeldOut(str(n), ids) for n, ids in enumerate(made.prompts(4))]
    settings = Settings(DEPTH, context=64, memory_gib=0.25, threads=1, ready_seconds=900)
    given = (made.target, made.draft, prompts, engines, settings, TOKENS, work)
    return check(*given, plain=plain)


class Late(Native):
    """Reads the list of layers one late, as an engine of another convention does."""

    name = "late"

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> Loaded:
        if draft is not None:
            there = work / "draft"
            shutil.copytree(draft, there, dirs_exist_ok=True)
            raw = json.loads((there / "config.json").read_text())
            raw["eagle_aux_hidden_state_layer_ids"] = [k + 1 for k in CAPTURE]
            (there / "config.json").write_text(json.dumps(raw))
            draft = there
        return super().start(target, draft, settings, work)


class Lossy(Native):
    """Ends its answers with a token of its own wherever it has a draft."""

    name = "lossy"

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> Loaded:
        loaded = super().start(target, draft, settings, work)
        return loaded if draft is None else _Changed(loaded)


class _Changed(Loaded):
    def __init__(self, loaded: Loaded) -> None:
        self.__dict__ = loaded.__dict__

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Answer]:
        return [
            replace(answer, tokens=(*answer.tokens[:-1], (answer.tokens[-1] + 1) % 48))
            for answer in super().generate(prompts, sampling)
        ]


class Elsewhere(Native):
    """Runs another target than it is given."""

    name = "elsewhere"

    def __init__(self, target: Path) -> None:
        self.target = target

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> Loaded:
        return super().start(self.target, draft, settings, work)


class Deaf(Native):
    """Serves the target and never drafts, as an engine with a wrong flag does."""

    name = "deaf"

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> Loaded:
        return super().start(target, None, settings, work)


class Dying(Native):
    name = "dying"

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> NoReturn:
        raise EngineFailed("dying died while it loaded", "its last lines: no room")


class Absent(Native):
    name = "absent"

    def missing(self) -> str | None:
        return "eagle3 engines install absent"


def test_our_engine_is_in_parity(made: Checkpoint, tmp_path: Path) -> None:
    found = run(made, tmp_path, Native())
    assert found.holds
    assert found.tau > 2
    [native] = found.engines
    assert [place.agrees for place in native.positions] == [True] * DEPTH
    assert native.text is not None
    assert native.text.equal == 4
    assert "Parity" in found.said


@pytest.mark.timeout(1800)
def test_an_engine_of_others_is_in_parity(made: Checkpoint, tmp_path: Path, server: str) -> None:
    found = run(made, tmp_path, Native(), engine(server), plain=True)
    assert found.holds, found.said
    assert [one.engine for one in found.engines] == ["native", server]
    assert [one.alike for one in found.engines] == [4, 4]
    assert [place.found for place in found.engines[1].positions] == found.by_position


def test_texts_with_and_without_the_draft_are_compared_where_it_is_asked(
    made: Checkpoint, tmp_path: Path
) -> None:
    found = run(made, tmp_path, Native(), Lossy(), plain=True)
    assert [one.alike for one in found.engines] == [4, 0]
    assert "4 of 4 identical, 4 alike with and without the draft" in page(found)
    assert run(made, tmp_path, Native()).engines[0].alike is None


@pytest.mark.parametrize(
    ("kind", "link"),
    [(Late, "acceptance"), (Lossy, "verification"), (Deaf, "acceptance"), (Dying, "loading")],
)
def test_the_link_that_broke_is_named(
    made: Checkpoint, tmp_path: Path, kind: type[Native], link: str
) -> None:
    found = run(made, tmp_path, Native(), kind())
    assert not found.holds
    native, other = found.engines
    assert native.broken is None
    assert other.broken == link
    assert kind.name in found.said
    assert link in found.said


def test_another_target_in_the_engine(made: Checkpoint, tmp_path: Path) -> None:
    other = build(tmp_path / "other")
    _exchange(other.target, made.order[5], made.order[20])
    found = run(made, tmp_path, Elsewhere(other.target))
    assert found.engines[0].broken == "target"


def _exchange(target: Path, a: int, b: int) -> None:
    """Let a target write two tokens in each other's place."""
    tensors = load_file(target / "model.safetensors")
    head = tensors["lm_head.weight"].clone()
    head[[a, b]] = head[[b, a]]
    save_file(tensors | {"lm_head.weight": head}, target / "model.safetensors", {"format": "pt"})


def test_an_engine_that_is_not_installed(made: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="absent is not installed"):
        run(made, tmp_path, Absent())


def test_the_page_and_the_record_say_the_same(made: Checkpoint, tmp_path: Path) -> None:
    found = run(made, tmp_path, Native(), Late())
    text, record = page(found), json.loads(json.dumps(found.record()))
    assert record["holds"] is False
    assert record["said"] in text
    assert "broken: acceptance" in text
    assert [row["broken"] for row in record["engines"]] == [None, "acceptance"]
    assert record["engines"][1]["positions"][0]["agrees"] is False
