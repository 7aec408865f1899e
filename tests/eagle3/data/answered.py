"""A run directory with a random target and made-up answers, for what comes after `regenerate`."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

from eagle3.config import ExtractConfig, Recipe, RunConfig, TrainConfig
from eagle3.data.extract import extract
from eagle3.run import Context, Stage, current, run_stage, write_json
from eagle3.train.loop import train
from tests.tiny import build_random_target

LAYERS = (2, 3, 4)


def write_config(run: Path, **section: Any) -> None:
    """A small recipe; keywords go to `extract`."""
    recipe = Recipe(
        name="small",
        extract=ExtractConfig(shard_tokens=256, **section),
        train=TrainConfig(
            ttt_steps=3,
            draft_vocab_size=48,
            epochs=1,
            batch_tokens=96,
            eval_every=4,
            eval_samples=3,
        ),
    )
    write_json(run / "config.json", RunConfig(target="demo", recipe=recipe).model_dump(mode="json"))


def make_answered(run: Path) -> Path:
    """Fill a run directory up to `regenerate`."""
    write_config(run)
    build_random_target(run / "target", layers=7)
    source = random.Random(0)

    def resolve(ctx: Context) -> None:
        write_json(ctx.out / "local.json", {"path": str(run / "target")})
        sizes = {"hidden_size": 64, "vocab_size": 64, "dtype": "float32"}
        write_json(ctx.out / "target.json", {"capture_layers": LAYERS, **sizes})

    def regenerate(ctx: Context) -> None:
        lines = []
        for i in range(18):
            ids = [source.randrange(2, 60) for _ in range(source.randrange(18, 40))]
            split = "train" if i < 14 else "heldout"
            line = {"id": str(i), "split": split, "ids": ids, "spans": [[5, len(ids)]]}
            lines.append(json.dumps({**line, "finish": "length"}) + "\n")
        (ctx.out / "responses.jsonl").write_text("".join(lines))

    run_stage(Stage("resolve", (), lambda c: 0, resolve), run, io.StringIO())
    run_stage(Stage("regenerate", ("resolve",), lambda c: 0, regenerate), run, io.StringIO())
    return run


def run_extract(run: Path) -> dict[str, Any]:
    """The summary of the stage extract."""

    def key(config: RunConfig) -> dict[str, Any]:
        return config.recipe.extract.model_dump(mode="json")

    stage = Stage("extract", ("resolve", "regenerate"), key, extract)
    summary: dict[str, Any] = run_stage(stage, run, io.StringIO())["summary"]
    return summary


def run_train(run: Path, label: str) -> tuple[list[dict[str, float]], str]:
    """History and log of a short training."""
    log = io.StringIO()
    reads = ("resolve", "regenerate", "extract")
    run_stage(Stage("train", reads, lambda c: label, train), run, log)
    lines = (current(run, "train") / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], log.getvalue()


def responses(run: Path) -> Path:
    return current(run, "regenerate") / "responses.jsonl"
