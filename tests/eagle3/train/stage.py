"""The training stage under a name of a test's own, so that nothing is found done."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3.data.features import Sample
from eagle3.run import Stage, current, read_config, run_stage, write_json
from eagle3.train.loop import Trainer, train


def stage(label: str) -> Stage:
    return Stage("train", ("resolve", "regenerate", "extract"), lambda c: label, train)


def run_train(run: Path, label: str) -> tuple[dict[str, Any], str]:
    """The summary, and what was printed."""
    stream = io.StringIO()
    manifest = run_stage(stage(label), run, stream)
    return manifest["summary"], stream.getvalue()


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(current(run, "train") / "draft" / "model.safetensors")


def change_recipe(run: Path, **train_fields: Any) -> None:
    """Rewrite config.json with other fields of the section `train`."""
    config = read_config(run).model_dump(mode="json")
    config["recipe"]["train"] |= train_fields
    write_json(run / "config.json", config)


def before_step(act: Callable[[Trainer], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something happen at the beginning of every step."""
    step = Trainer._step

    def acting(self: Trainer, groups: list[list[Sample]]) -> dict[str, float]:
        act(self)
        return step(self, groups)

    monkeypatch.setattr(Trainer, "_step", acting)
