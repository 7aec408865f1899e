"""A recipe, a run, and how both are read."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from eagle3.config.probe import ProbeConfig
from eagle3.config.prompts import PromptsConfig, PromptSource
from eagle3.config.reference import Strict, TargetRef
from eagle3.config.sections import (
    Auto,
    BenchmarkConfig,
    EngineName,
    ExtractConfig,
    ParityConfig,
    ProveConfig,
    RegenerateConfig,
    TrainConfig,
)


class Recipe(Strict):
    """Everything but the target. One YAML file a recipe."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    """What a run calls it."""
    description: str = ""
    """One sentence: what it gives, and what it asks for."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Decides every random choice: which prompts, their order, sampled answers, weights."""
    prompts: PromptsConfig = PromptsConfig()
    """The prompt sets of the recipe; a run may name others."""
    own_prompts: bool = False
    """The recipe is for prompts of your own: a run must name them."""
    engines: Annotated[tuple[EngineName, ...], Field(min_length=1)] | Auto = "auto"
    """Serving engines that must load the draft, accept what training says and write the target's
    own text; ours (`native`) is always among them. `auto`: ours, and llama.cpp where it takes the
    target. One that is named and cannot do it ends the run before it trains."""
    regenerate: RegenerateConfig = RegenerateConfig()
    extract: ExtractConfig = ExtractConfig()
    train: TrainConfig = TrainConfig()
    parity: ParityConfig = ParityConfig()
    benchmark: BenchmarkConfig = BenchmarkConfig()
    prove: ProveConfig = ProveConfig()

    def with_prompts(self, given: dict[str, Any]) -> Self:
        """The recipe with what a run says about prompts in place of its own.

        Raises:
            ValueError: a key or value that is not allowed, or no prompts where they must be named.
        """
        base = self.prompts.model_dump(exclude_unset=True)
        if "source" in given or "mix" in given:
            base = {k: v for k, v in base.items() if k not in (*PromptSource.model_fields, "mix")}
        prompts = PromptsConfig.model_validate({**base, **given})
        if self.own_prompts and prompts.source == "demo" and not prompts.mix:
            raise ValueError(
                f"recipe {self.name} is for prompts of your own; name them as prompts.source"
            )
        return self.model_copy(update={"prompts": prompts})

    @property
    def draft_depth(self) -> int:
        """Draft tokens of a round, at most."""
        depth = self.benchmark.depth
        return self.train.ttt_steps if depth == "auto" else depth

    @model_validator(mode="after")
    def _trained_as_deep_as_drafted(self) -> Self:
        if self.draft_depth > self.train.ttt_steps:
            raise ValueError(
                f"benchmark.depth {self.benchmark.depth} is deeper than train.ttt_steps "
                f"{self.train.ttt_steps}: acceptance collapses beyond the trained depth"
            )
        return self


class RunConfig(Strict):
    """One run: a recipe applied to a target. Lives in `config.json` of the run directory."""

    target: str
    """The reference as the user gave it."""
    prompts: PromptsConfig = PromptsConfig()
    recipe: Recipe
    brought: dict[str, str] = Field(default_factory=dict)
    """Where a worker has put what only the service can fetch: the path of each `s3://` or
    `models:/` target and `s3://` prompt set, by the name it has above."""
    probe: ProbeConfig | None = None
    """Of an attachment: the drafts that the stage `probe` tries on the target."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """What an hour on this machine costs, in any currency; times alone are reported when empty."""

    @model_validator(mode="after")
    def _target_parses(self) -> Self:
        TargetRef.parse(self.target)
        return self

    @property
    def target_ref(self) -> TargetRef:
        """The parsed target reference."""
        return TargetRef.parse(self.target)

    def brought_to(self, name: str) -> Path | None:
        """Where a worker has put what a run names so; None when it has not."""
        return Path(self.brought[name]) if name in self.brought else None


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the project."""
    files = resources.files("eagle3").joinpath("recipes").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_recipe(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A shipped recipe (or the YAML file at a path), with nested overrides applied.

    Raises:
        ValueError: no such recipe, or a key or value that the recipe does not allow.
    """
    shipped = resources.files("eagle3").joinpath("recipes", f"{name}.yaml")
    path = Path(name)
    if re.fullmatch(r"[a-z0-9_-]+", name) and shipped.is_file():
        text = shipped.read_text()
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        text = path.read_text()
    else:
        raise ValueError(f"recipe {name!r} does not exist; expected {', '.join(recipe_names())}")
    try:
        recipe = deepcopy(_parsed(text))
    except yaml.YAMLError as e:
        raise ValueError(f"recipe {name!r} is not YAML: {' '.join(str(e).split())}") from None
    if not isinstance(recipe, dict):
        raise ValueError(f"recipe {name!r} has no keys; expected name, train and so on")
    return Recipe.model_validate(_merged(recipe, overrides or {}))


def explain(error: ValidationError) -> str:
    """A validation error as one line a problem: the field's full path, then what is wrong."""
    lines = []
    for e in error.errors():
        path = ".".join(str(part) for part in e["loc"]) or "config"
        lines.append(f"{path}: {e['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


@lru_cache(maxsize=32)
def _parsed(text: str) -> Any:
    """What YAML says. Parsed once: a service reads the same recipes with every job, 10 ms each."""
    return yaml.safe_load(text)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merged(out[key], value) if nested else value
    return out
