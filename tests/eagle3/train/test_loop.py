"""The training stage: it learns, resumes exactly, and keeps the best draft."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3.config import ExtractConfig, Recipe, RunConfig, TrainConfig
from eagle3.data.extract import extract
from eagle3.data.features import SampleRef
from eagle3.errors import BadInput, Stopped
from eagle3.run import Context, Stage, current, read_manifest, run_stage, write_json
from eagle3.train.checkpoint import restore_best
from eagle3.train.loop import Trainer, teaches, train
from tests.tiny import build_random_target


def small_recipe() -> Recipe:
    return Recipe(
        name="small",
        extract=ExtractConfig(shard_tokens=256),
        train=TrainConfig(
            ttt_steps=3,
            draft_vocab_size=48,
            learning_rate=5e-3,
            epochs=4,
            batch_tokens=128,
            eval_every=4,
            eval_samples=4,
            checkpoint_every=3,
        ),
    )


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory whose features come from a random Llama over counting sequences."""
    run = tmp_path_factory.mktemp("run")
    write_json(
        run / "config.json",
        RunConfig(target="demo", recipe=small_recipe()).model_dump(mode="json"),
    )
    build_random_target(run / "target", layers=7)

    def resolve(ctx: Context) -> None:
        write_json(ctx.out / "local.json", {"path": str(run / "target")})
        write_json(ctx.out / "target.json", {"capture_layers": [2, 3, 4], "dtype": "float32"})

    def regenerate(ctx: Context) -> None:
        source = random.Random(0)
        lines = []
        for i in range(28):
            start = source.randrange(2, 40)
            ids = [2 + (start + j) % 40 for j in range(source.randrange(18, 30))]
            lines.append(
                {
                    "id": str(i),
                    "split": "train" if i < 22 else "heldout",
                    "ids": ids,
                    "spans": [[5, len(ids)]],
                    "finish": "length",
                }
            )
        (ctx.out / "responses.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))

    stream = io.StringIO()
    run_stage(Stage("resolve", (), lambda c: 0, resolve), run, stream)
    run_stage(Stage("regenerate", ("resolve",), lambda c: 0, regenerate), run, stream)
    run_stage(Stage("extract", ("resolve", "regenerate"), lambda c: 0, extract), run, stream)
    return run


def stage(label: str) -> Stage:
    return Stage("train", ("resolve", "regenerate", "extract"), lambda c: label, train)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(current(run, "train") / "draft" / "model.safetensors")


def test_it_learns_and_keeps_the_best(extracted: Path) -> None:
    manifest = run_stage(stage("whole"), extracted, io.StringIO())
    history = (current(extracted, "train") / "history.jsonl").read_text().splitlines()
    rows = [json.loads(x) for x in history]
    assert rows[-1]["train/loss"] < 0.9 * rows[0]["train/loss"]
    evaluated = {r["step"]: r["eval/acceptance_length"] for r in rows if "eval/acceptance_0" in r}
    assert manifest["summary"]["acceptance_length"] == round(max(evaluated.values()), 4)
    assert evaluated[manifest["summary"]["best_step"]] == max(evaluated.values())
    assert 0 < manifest["summary"]["coverage"] <= 1


def test_stopped_and_resumed_equals_uninterrupted(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage(stage("uninterrupted"), extracted, io.StringIO())
    expected = weights(extracted)
    step = Trainer._step

    def stop_at_five(self: Trainer, batch: object, index: int) -> object:
        if index == 4 and not (self.work / "stopped").exists():
            (self.work / "stopped").touch()
            self.ctx.stop.set()
        return step(self, batch, index)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_step", stop_at_five)
    with pytest.raises(Stopped, match="checkpoint of step 5"):
        run_stage(stage("interrupted"), extracted, io.StringIO())
    stream = io.StringIO()
    run_stage(stage("interrupted"), extracted, stream)
    assert "going on from the checkpoint of step 5" in stream.getvalue()
    found = weights(extracted)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    history = (current(extracted, "train") / "history.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in history] == list(range(1, len(history) + 1))


def test_a_sample_that_teaches_nothing_is_left_out() -> None:
    def ref(*spans: tuple[int, int]) -> SampleRef:
        return SampleRef(id="a", split="train", start=0, length=20, spans=list(spans))

    assert teaches(ref((5, 7)), 20)
    assert not teaches(ref((5, 6)), 20)  # the answer is an end-of-turn alone
    assert not teaches(ref((5, 20)), 6)
    assert teaches(ref((3, 4), (8, 12)), 20)


def test_a_target_that_ends_every_answer_at_once(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.train.loop.teaches", lambda ref, limit: False)
    with pytest.raises(BadInput, match="0 training samples"):
        run_stage(stage("nothing"), extracted, io.StringIO())


def test_the_best_draft_survives_a_kill(tmp_path: Path) -> None:
    (tmp_path / "best-before").mkdir()  # killed between two renames
    restore_best(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["best"]
    (tmp_path / "best-before").mkdir()
    restore_best(tmp_path)
    assert (tmp_path / "best").is_dir()


def test_the_same_seed_gives_the_same_bits(extracted: Path) -> None:
    run_stage(stage("once"), extracted, io.StringIO())
    once = (current(extracted, "train") / "history.jsonl").read_text()
    digest = read_manifest(current(extracted, "train"))["outputs"]["draft/model.safetensors"]
    run_stage(stage("twice"), extracted, io.StringIO())
    assert (current(extracted, "train") / "history.jsonl").read_text() == once
    again = read_manifest(current(extracted, "train"))["outputs"]["draft/model.safetensors"]
    assert again == digest
