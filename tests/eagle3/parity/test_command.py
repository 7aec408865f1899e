"""`eagle3 parity` on a run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.config import Recipe, RunConfig
from eagle3.run import current, read_manifest, write_json
from tests.golden import golden_draft, golden_target, successor_scores
from tests.golden_run import write_golden_run

pytestmark = pytest.mark.usefixtures("quick_calibration")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose stages up to `export` are done."""
    folder = tmp_path_factory.mktemp("run")
    golden = golden_target()
    draft = golden_draft(golden.target, successor_scores(golden.perm))
    write_golden_run(folder, golden, draft, answer_tokens=8)
    config = RunConfig(target="demo", recipe=Recipe(name="golden"))
    write_json(folder / "config.json", config.model_dump(mode="json"))
    for stage in ("resolve", "regenerate", "export"):
        out = folder / "stages" / stage / "digest"
        out.parent.mkdir(parents=True)
        (folder / stage).rename(out)
        (out / "manifest.json").write_text("{}")
        (out.parent / "current").write_text("digest")
    return folder


def parity(run: Path, *more: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["parity", str(run), "--prompts", "3", "--max-new-tokens", "8", *more])
    return int(left.value.code or 0)


def test_parity_of_our_engine(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(run, "--engines", "native", "--plain") == 0
    found = json.loads((run / "parity" / "parity.json").read_text())
    assert found["holds"] is True
    assert found["prompts"] == 3
    assert [(one["engine"], one["alike"]) for one in found["engines"]] == [("native", 3)]
    page = (run / "parity" / "parity.md").read_text()
    assert found["said"] in page
    assert page in capsys.readouterr().out


def test_the_stage_tries_the_engines_of_the_recipe(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"prompts": 3, "max_new_tokens": 8}
    recipe = Recipe.model_validate({"name": "golden", "engines": ["native"], "parity": small})
    write_json(run / "config.json", RunConfig(target="demo", recipe=recipe).model_dump(mode="json"))
    write_json(run / "stages" / "resolve" / "digest" / "target.json", {"parameters": 10})
    write_json(run / "stages" / "resolve" / "digest" / "manifest.json", {"outputs_digest": ""})
    for stage in ("regenerate", "export"):
        write_json(run / "stages" / stage / "digest" / "manifest.json", {"outputs_digest": ""})
    with pytest.raises(SystemExit) as left:
        main(["parity", str(run)])
    assert not left.value.code, capsys.readouterr().out
    summary = read_manifest(current(run, "parity"))["summary"]
    assert (summary["holds"], summary["left_out"], summary["prompts"]) == (True, {}, 3)
    native = summary["engines"]["native"]
    assert (native["loads"], native["broken"], native["texts_identical"]) == (True, None, 3)
    assert len(native["acceptance_by_position"]) == recipe.draft_depth
    assert "native" in json.loads((current(run, "parity") / "parity.json").read_text())["said"]


def test_an_engine_that_there_is_not(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity(run, "--engines", "turbo") == 2
    assert "no engine is called 'turbo'" in capsys.readouterr().err


def test_a_run_without_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(target="demo", recipe=Recipe(name="golden"))
    write_json(tmp_path / "config.json", config.model_dump(mode="json"))
    assert parity(tmp_path) == 2
    assert "has not run" in capsys.readouterr().err
