"""A proof that is made again says which fields of the certificate are not the same."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3 import cli
from eagle3.config import ProveConfig, Recipe, RunConfig
from eagle3.errors import BadInput, Stopped
from eagle3.export import official
from eagle3.proof import stage
from eagle3.proof.again import differences, prove_again
from eagle3.proof.greedy import PromptProof, prove_prompt
from eagle3.run import current, run_stage, write_json
from eagle3.stages import STAGES
from tests.golden import LAYERS, golden_draft, golden_target, successor_scores
from tests.golden_run import write_golden_run

PROVE = STAGES["prove"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with the outputs that the proof reads, as their stages leave them."""
    golden = golden_target()
    draft = golden_draft(golden.target, successor_scores(golden.perm))
    write_golden_run(tmp_path, golden, draft)
    recipe = Recipe(name="golden", prove=ProveConfig(prompts=2, max_new_tokens=8, samples=20))
    write_json(
        tmp_path / "config.json",
        RunConfig(target="demo", recipe=recipe).model_dump(mode="json"),
    )
    for name in PROVE.reads:
        folder = tmp_path / "stages" / name / "done"
        folder.parent.mkdir(parents=True)
        (tmp_path / name).rename(folder)
        (folder.parent / "current").write_text("done")
        write_json(folder / "manifest.json", {"outputs_digest": name})
    return tmp_path


def test_the_same_proof_is_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stage(PROVE, run, io.StringIO())
    folder = current(run, "prove")
    before = (folder / "certificate.json").read_bytes()
    page = (folder / "certificate.md").read_text()
    assert "**Lossless.**" in page
    assert "## Sampled text" in page
    assert "eagle3 prove RUN --again" in page
    with pytest.raises(SystemExit, match="0"):
        cli.main(["prove", str(run), "--again"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["summary"] == {"same": True, "differ": []}
    assert (folder / "certificate.json").read_bytes() == before
    assert not (run / "stages" / "prove" / "again").exists()


def test_what_has_changed_is_named(run: Path) -> None:
    run_stage(PROVE, run, io.StringIO())
    path = current(run, "prove") / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["versions"]["torch"] = "1.0"
    certificate["by_prompt"][1]["rounds"] += 1
    write_json(path, certificate)
    stream = io.StringIO()
    differing = ["certificate.json", "by_prompt.1.rounds", "versions.torch"]
    assert prove_again(PROVE, run, stream) == differing
    assert "certificate.json is not as the proof left it" in stream.getvalue()
    assert "versions.torch: 1.0 then, 2." in stream.getvalue()


def test_a_page_that_was_edited_is_named(run: Path) -> None:
    run_stage(PROVE, run, io.StringIO())
    page = current(run, "prove") / "certificate.md"
    page.write_text(page.read_text().replace("**Lossless.**", "**More than lossless.**"))
    assert prove_again(PROVE, run, io.StringIO()) == ["certificate.md"]


def test_what_was_proven_of_another_draft_is_not_gone_on_with(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage(PROVE, run, io.StringIO())
    rounds = json.loads((current(run, "prove") / "certificate.json").read_text())["by_prompt"]
    proven: list[PromptProof] = []

    def stopped(*args: Any) -> PromptProof:
        if proven:
            raise Stopped("stopped")
        proven.append(prove_prompt(*args))
        return proven[-1]

    with monkeypatch.context() as patched:
        patched.setattr(stage, "prove_prompt", stopped)
        with pytest.raises(Stopped):
            prove_again(PROVE, run, io.StringIO())
    golden = golden_target()
    wrong = golden_draft(golden.target, successor_scores(golden.perm, 5))
    folder = current(run, "export")
    official.save(wrong, folder / "draft", LAYERS, torch.float32)
    write_json(folder / "manifest.json", {"outputs_digest": "another"})
    differing = prove_again(PROVE, run, io.StringIO())
    fields = [f"by_prompt.{n}.rounds" for n in range(len(rounds))]
    assert differing == [*fields, "draft.model.safetensors_sha256"]


@pytest.mark.parametrize("text", [None, "{"])
def test_a_certificate_that_cannot_be_read_is_named(run: Path, text: str | None) -> None:
    run_stage(PROVE, run, io.StringIO())
    path = current(run, "prove") / "certificate.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match="is gone or is not JSON"):
        prove_again(PROVE, run, io.StringIO())


def test_without_a_certificate_there_is_nothing_to_compare(run: Path) -> None:
    with pytest.raises(BadInput, match="prove has not run"):
        prove_again(PROVE, run)


def test_fields_that_came_or_went_differ() -> None:
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}, 4]}) == {
        "a.1.b": (2, 3),
        "a.2": ("—", 4),
    }
