"""The stages in order: what each one reads, and what of the config decides its result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.bench.speed import benchmark
from eagle3.config import RunConfig
from eagle3.config.sections import HOUSEKEEPING
from eagle3.data.extract import extract
from eagle3.data.prepare import prepare
from eagle3.data.prompts import prompt_content
from eagle3.data.regenerate import regenerate
from eagle3.data.resolve import resolve
from eagle3.export.stage import export
from eagle3.parallel import together
from eagle3.parity.engines import installed
from eagle3.parity.stage import stage as parity
from eagle3.proof import prove
from eagle3.run import Stage
from eagle3.train.loop import train
from eagle3.train.warm import draft_content


def _recipe(*sections: str) -> Callable[[RunConfig], Any]:
    def key(config: RunConfig) -> dict[str, Any]:
        recipe = config.recipe.model_dump(mode="json")
        return {"seed": recipe["seed"], **{s: recipe[s] for s in sections}}

    return key


def _regenerate(config: RunConfig) -> dict[str, Any]:
    """All but where the target is served: that it is the target is checked."""
    recipe = config.recipe
    section = recipe.regenerate.model_dump(
        mode="json", exclude={"base_url", "model", "concurrency"}
    )
    given = section["mode"] == "given"  # samples are then split, or cut, at the trained length
    cut = {"max_length": recipe.train.max_length} if given else {}
    return {"seed": recipe.seed, "regenerate": section, **cut}


def _extract(config: RunConfig) -> dict[str, Any]:
    """All but how much may be stored and where features are made, which decide nothing."""
    recipe = config.recipe
    section = recipe.extract.model_dump(
        mode="json", exclude={"quota_gb", "queue_batches", "device", "sharded"}
    )
    return {"seed": recipe.seed, "extract": section}


def _train(config: RunConfig) -> dict[str, Any]:
    """All but how checkpoints are kept, which decides nothing; a draft to start from by content."""
    recipe = config.recipe
    section = recipe.train.model_dump(mode="json", exclude=set(HOUSEKEEPING))
    if recipe.train.start_from is not None:
        section["start_from"] = draft_content(Path(recipe.train.start_from))
    return {"seed": recipe.seed, "train": section, "depth": recipe.draft_depth}


def _parity(config: RunConfig) -> dict[str, Any]:
    """With the engines, and their versions here: another one is asked anew."""
    recipe = config.recipe
    return {
        **_recipe("parity")(config),
        "engines": recipe.model_dump(mode="json")["engines"],
        "versions": installed(recipe.engines),
        "depth": recipe.draft_depth,
    }


def _prove(config: RunConfig) -> dict[str, Any]:
    """The proof drafts as the benchmark does."""
    bench = config.recipe.benchmark.model_dump(mode="json")
    shape = {key: bench[key] for key in ("depth", "top_k", "total_tokens")}
    return {**_recipe("prove")(config), "shape": shape}


def _prompts(config: RunConfig) -> dict[str, Any]:
    """The prompt sets by content, so that an edited file, or a hub data set that has moved on, is
    read again."""
    prompts = config.prompts.model_dump(mode="json")
    mode = config.recipe.regenerate.mode
    content = prompt_content(config)
    return {"seed": config.recipe.seed, "prompts": prompts, "content": content, "mode": mode}


STAGES = {
    stage.name: stage
    for stage in (
        Stage("resolve", (), lambda c: {"target": c.target}, resolve, always=True),
        Stage("prepare", ("resolve",), _prompts, prepare),
        Stage("regenerate", ("resolve", "prepare"), _regenerate, regenerate),
        Stage("extract", ("resolve", "regenerate"), _extract, extract, together=together),
        Stage("train", ("resolve", "regenerate", "extract"), _train, train, together=together),
        Stage("export", ("resolve", "train"), _recipe(), export),
        Stage("parity", ("resolve", "regenerate", "export"), _parity, parity),
        Stage("benchmark", ("resolve", "regenerate", "export"), _recipe("benchmark"), benchmark),
        Stage(
            "prove",
            ("resolve", "regenerate", "export"),
            _prove,
            prove,
            also_reads=lambda c: ("benchmark",) if c.recipe.benchmark.chooses else (),
        ),
    )
}
