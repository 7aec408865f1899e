"""What a run is told to do. Torch-free: the API, the jobs package and the `eagle3` CLI share it.

A recipe is one YAML file with a section per stage; unknown keys are errors. `RunConfig` is a recipe
applied to a target and its prompts; it is written to `config.json` in the run directory.
"""

from eagle3.config.document import recipes_markdown
from eagle3.config.probe import ProbeConfig, ProbedDraft
from eagle3.config.prompts import PromptsConfig, PromptSource, WeightedSource
from eagle3.config.recipe import Recipe, RunConfig, explain, load_recipe, recipe_names
from eagle3.config.reference import TARGET_FORMS, PromptRef, Strict, TargetKind, TargetRef
from eagle3.config.sections import (
    BenchmarkConfig,
    EngineName,
    ExtractConfig,
    ParityConfig,
    ProveConfig,
    RegenerateConfig,
    TrainConfig,
)

STAGES = (
    "resolve", "prepare", "regenerate", "extract", "train", "export",
    "parity", "benchmark", "prove",
)  # fmt: skip
"""The stages that run as a child process, in order. `register` follows them, in the worker."""

__all__ = [
    "STAGES",
    "TARGET_FORMS",
    "BenchmarkConfig",
    "EngineName",
    "ExtractConfig",
    "ParityConfig",
    "ProbeConfig",
    "ProbedDraft",
    "PromptRef",
    "PromptSource",
    "PromptsConfig",
    "ProveConfig",
    "Recipe",
    "RegenerateConfig",
    "RunConfig",
    "Strict",
    "TargetKind",
    "TargetRef",
    "TrainConfig",
    "WeightedSource",
    "explain",
    "load_recipe",
    "recipe_names",
    "recipes_markdown",
]
