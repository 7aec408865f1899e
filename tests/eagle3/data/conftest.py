from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.config import PromptsConfig, RunConfig, Strict, load_recipe
from eagle3.data.extract import extract
from eagle3.data.prepare import prepare
from eagle3.data.regenerate import regenerate
from eagle3.data.resolve import resolve
from eagle3.run import Stage, current, run_stage
from tests.eagle3.data.answered import make_answered
from tests.tiny import Tiny, build_permutation_target, write_prompts

torch.set_num_threads(1)  # tiny products: a second thread only waits

DATA_STAGES = {
    stage.name: stage
    for stage in (
        Stage("resolve", (), lambda c: c.target, resolve, always=True),
        Stage("prepare", ("resolve",), lambda c: key(c, c.prompts), prepare),
        Stage(
            "regenerate", ("resolve", "prepare"), lambda c: key(c, c.recipe.regenerate), regenerate
        ),
        Stage("extract", ("resolve", "regenerate"), lambda c: key(c, c.recipe.extract), extract),
    )
}


def key(config: RunConfig, section: Strict) -> list[Any]:
    return [config.recipe.seed, section.model_dump(mode="json")]


class Run:
    """A run directory and its data stages."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path, self.config = path, config
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(config.model_dump_json())

    def run(self, *names: str) -> dict[str, Any]:
        """Run stages in order; the last one's summary."""
        for name in names:
            manifest = run_stage(DATA_STAGES[name], self.path, io.StringIO())
        summary: dict[str, Any] = manifest["summary"]
        return summary

    def out(self, stage: str) -> Path:
        return current(self.path, stage)

    def lines(self, stage: str, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out(stage) / name).read_text().splitlines()]

    def logged(self, stage: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.path / "logs" / f"{stage}.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return build_permutation_target(tmp_path_factory.mktemp("target") / "perm")


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory filled up to `regenerate`; tests write other configs into it."""
    return make_answered(tmp_path_factory.mktemp("answered"))


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path, tiny: Tiny) -> MakeRun:
    """A run on the tiny target; keywords go to `prompts`, the rest into the recipe."""

    def make(
        target: Path | str = tiny.path,
        source: Path | str | None = None,
        prompts: dict[str, Any] | None = None,
        **recipe: Any,
    ) -> Run:
        source = source or write_prompts(tmp_path / "prompts.jsonl", tiny.prompts(24))
        recipe = {
            "engines": ["native"],  # others are asked whether they take the target: seconds
            "regenerate": {"max_new_tokens": 12, "batch_size": 8},
            **recipe,
        }
        config = RunConfig(
            target=str(target) if "/" not in str(target)[:1] else f"file://{target}",
            prompts=PromptsConfig.model_validate(
                {"source": str(source), "heldout": 4, **(prompts or {})}
            ),
            recipe=load_recipe("quick", recipe),
        )
        return Run(tmp_path / "run", config)

    return make
