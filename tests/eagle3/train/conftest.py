"""A run directory with the features of a random target, ready to train on."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from eagle3.config import ExtractConfig, Recipe, RunConfig, TrainConfig
from eagle3.data.extract import extract
from eagle3.run import Context, Stage, run_stage, write_json
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
        sizes = json.loads((run / "target" / "config.json").read_text())
        facts = {name: sizes[name] for name in ("hidden_size", "vocab_size")}
        facts |= {"capture_layers": [2, 3, 4], "dtype": "float32"}
        write_json(ctx.out / "target.json", facts)

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
