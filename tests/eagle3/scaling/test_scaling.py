"""`eagle3 scaling` on a tiny target that a draft can learn."""

from __future__ import annotations

import io
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eagle3.cli import main
from eagle3.config import ExtractConfig, PromptsConfig, Recipe, RunConfig, TrainConfig
from eagle3.data.features import SampleRef
from eagle3.run import Context, Stage, run_stage, write_json
from eagle3.stages import STAGES
from eagle3.train.samples import part
from tests.tiny import BOS, USER, build_permutation_target

ANSWER = 12


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the features of a permutation target."""
    run = tmp_path_factory.mktemp("scaling") / "run"
    run.mkdir()
    tiny = build_permutation_target(run / "target", layers=7)
    recipe = Recipe(
        name="tiny",
        extract=ExtractConfig(shard_tokens=512),
        train=TrainConfig(
            ttt_steps=3,
            draft_vocab_size=64,
            learning_rate=5e-3,
            epochs=3,
            batch_tokens=96,
            eval_every=8,
            eval_samples=4,
        ),
    )
    config = RunConfig(target="demo", prompts=PromptsConfig(heldout=10), recipe=recipe)
    write_json(run / "config.json", config.model_dump(mode="json"))

    def resolve(ctx: Context) -> None:
        write_json(ctx.out / "local.json", {"path": str(tiny.path)})
        write_json(ctx.out / "target.json", {"capture_layers": [2, 3, 4], "dtype": "float32"})
        ctx.summary["resolved"] = "tiny@1"

    def regenerate(ctx: Context) -> None:
        lines = []
        for n, word in enumerate((tiny.order * 2)[:74]):
            prompt = [BOS, USER, word]
            ids = prompt + tiny.chain(word, ANSWER)
            split = "train" if n < 64 else "heldout"
            spans = [[len(prompt), len(ids)]]
            line = {"id": f"{n:03}", "split": split, "ids": ids, "spans": spans}
            lines.append(json.dumps({**line, "finish": "length"}) + "\n")
        (ctx.out / "responses.jsonl").write_text("".join(lines))

    stream = io.StringIO()
    run_stage(Stage("resolve", (), lambda c: 0, resolve), run, stream)
    run_stage(Stage("regenerate", ("resolve",), lambda c: 0, regenerate), run, stream)
    run_stage(STAGES["extract"], run, stream)
    return run


def scaling(run: Path, *shares: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["scaling", str(run), *(["--shares", *shares] if shares else [])])
    assert isinstance(end.value.code, int)
    return end.value.code


def found(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "scaling" / "scaling.json").read_text())
    return record


@pytest.mark.slow
def test_more_data_is_found_to_help(extracted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling(extracted, "1", "1/8", "1/2") == 0
    printed = capsys.readouterr().out
    assert "training 1 of 3, on 1/8 of the data" in printed
    assert "Twice the data (1,920 training tokens)" in printed

    record = found(extracted)
    few, half, whole = record["trainings"]
    assert [t["share"] for t in record["trainings"]] == ["1/8", "1/2", "1"]
    assert [t["samples"] for t in record["trainings"]] == [8, 32, 64]
    assert [t["tokens"] for t in record["trainings"]] == [120, 480, 960]
    assert whole["answer_tokens"] == 64 * ANSWER
    assert few["steps"] < half["steps"] < whole["steps"]
    assert few["tau"] < whole["tau"]
    assert len(whole["rounds"]) == 6  # four of the ten held-out answers choose the checkpoint
    assert not record["judges_chose"]
    curve = record["curve"]
    assert 1 <= curve["twice"]["low"] < curve["twice"]["at"] <= curve["twice"]["high"] <= 4
    assert curve["slope"] > 0
    folder = extracted / "scaling"
    assert (folder / "scaling.svg").stat().st_size > 1000
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "scaling.md").read_text() in printed

    assert scaling(extracted, "1/8", "1/2", "1") == 0  # nothing is trained again
    assert capsys.readouterr().out.count("already done") == 3
    assert found(extracted) == record


def test_a_stopped_scaling_goes_on(
    extracted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second training is stopped; the first is not done again."""
    run = tmp_path / "run"
    shutil.copytree(extracted, run, ignore=shutil.ignore_patterns("scaling", "train"))
    monkeypatch.setattr("eagle3.train.loop.Trainer._keep", _stop_on_half)
    assert scaling(run, "1/8", "1/2") == 75
    monkeypatch.undo()
    first = run / "scaling" / "1-of-8" / "logs" / "train.jsonl"
    assert scaling(run, "1/8", "1/2") == 0
    results = [json.loads(line) for line in first.read_text().splitlines()]
    assert [r["cached"] for r in results if r["kind"] == "result"] == [False, True]


def _stop_on_half(trainer: Any) -> None:
    if trainer.ctx.config.recipe.train.data_share == 0.5:
        trainer.ctx.stop.set()
        trainer.ctx.check_stop()


def test_a_run_without_features_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig(target="demo", recipe=Recipe(name="tiny"))
    write_json(tmp_path / "config.json", config.model_dump(mode="json"))
    assert scaling(tmp_path) == 2
    assert "resolve has not run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shares", "problem"),
    [(["1"], "two different parts"), (["1/2", "2"], "at most 1"), (["x"], "is no part")],
)
def test_parts_that_make_no_sense_are_refused(
    extracted: Path, shares: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaling(extracted, *shares) == 2
    assert problem in capsys.readouterr().err


def test_smaller_parts_lie_inside_larger_ones() -> None:
    refs = [
        SampleRef(id=str(n), split="train", start=0, length=9, spans=[(2, 9)]) for n in range(40)
    ]
    parts = [part(refs, share, seed=3) for share in (0.125, 0.25, 0.5, 1.0)]
    assert [len(p) for p in parts] == [5, 10, 20, 40]
    ids = [[int(ref.id) for ref in p] for p in parts]
    assert all(set(small) <= set(large) for small, large in pairwise(ids))
    assert all(p == sorted(p) for p in ids)
    assert part(refs, 0.5, seed=4) != parts[2]
    assert len(part(refs, 1e-6, seed=3)) == 1
