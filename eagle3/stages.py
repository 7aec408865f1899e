"""The stages in order: what each one reads, and what of the config decides its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eagle3.bench.speed import benchmark
from eagle3.config import RunConfig
from eagle3.config.sections import HOUSEKEEPING
from eagle3.data.extract import extract
from eagle3.data.prepare import prepare
from eagle3.data.prompts import demo_files, prompt_file
from eagle3.data.regenerate import regenerate
from eagle3.data.resolve import resolve
from eagle3.export.stage import export
from eagle3.proof import prove
from eagle3.run import Stage, sha256_file
from eagle3.train.loop import train


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
    return {"seed": recipe.seed, "regenerate": section}


def _train(config: RunConfig) -> dict[str, Any]:
    """All but how checkpoints are kept, which decides nothing."""
    recipe = config.recipe
    section = recipe.train.model_dump(mode="json", exclude=set(HOUSEKEEPING))
    return {"seed": recipe.seed, "train": section, "depth": recipe.benchmark.depth}


def _prove(config: RunConfig) -> dict[str, Any]:
    """The proof drafts as the benchmark does."""
    bench = config.recipe.benchmark.model_dump(mode="json")
    shape = {key: bench[key] for key in ("depth", "top_k", "total_tokens")}
    return {**_recipe("prove")(config), "shape": shape}


def _prompts(config: RunConfig) -> dict[str, Any]:
    """The prompt set by content where it is a file, so that an edited file is read again."""
    prompts = config.prompts.model_dump(mode="json")
    return {"seed": config.recipe.seed, "prompts": prompts, "content": _prompt_content(config)}


def _prompt_content(config: RunConfig) -> list[str]:
    """Hashes of the files that hold the prompts; a hub dataset is named by its source alone."""
    if config.prompts.source == "demo":
        files = demo_files()
    else:
        file = prompt_file(config)
        files = [] if file is None else [file]
    return [sha256_file(path) for path in files if path.is_file()]


STAGES = {
    stage.name: stage
    for stage in (
        Stage("resolve", (), lambda c: {"target": c.target}, resolve, always=True),
        Stage("prepare", ("resolve",), _prompts, prepare),
        Stage("regenerate", ("resolve", "prepare"), _regenerate, regenerate),
        Stage("extract", ("resolve", "regenerate"), _recipe("extract"), extract),
        Stage("train", ("resolve", "regenerate", "extract"), _train, train),
        Stage("export", ("resolve", "train"), _recipe(), export),
        Stage("benchmark", ("resolve", "regenerate", "export"), _recipe("benchmark"), benchmark),
        Stage("prove", ("resolve", "regenerate", "export"), _prove, prove),
    )
}
