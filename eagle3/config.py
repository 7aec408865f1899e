"""What a run is told to do. Torch-free: the API, the jobs package and the `eagle3` CLI share it.

A recipe is one YAML file with a section per stage; unknown keys are errors. `RunConfig` is a recipe
applied to a target and its prompts; it is written to `config.json` in the run directory.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

STAGES = ("resolve", "prepare", "regenerate", "extract", "train", "export", "benchmark", "prove")
"""The stages that run as a child process, in order. `register` follows them, in the worker."""

TargetKind = Literal["hub", "s3", "mlflow", "file", "gguf", "demo"]

_HUB = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[\w./-]{1,128}))?"
)
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<prefix>[^\s?#]+)")
_MLFLOW = re.compile(
    r"models:/(?P<name>[^/@\s]{1,256})(/(?P<version>\d+)|@(?P<alias>[A-Za-z0-9_.-]{1,256}))"
)

DATASET = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<split>[\w.-]+))?"
)
"""A prompts source that names a hub data set, unless it ends like a file."""

TARGET_FORMS = (
    "org/name[@revision], s3://bucket/prefix, models:/name/version, models:/name@alias, "
    "file:///abs/dir, gguf:/abs/file.gguf or demo"
)


class Strict(BaseModel):
    """Base of every config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TargetRef(Strict):
    """A parsed target reference. `str(ref)` gives back the text it was parsed from."""

    kind: TargetKind
    location: str
    """Hub repo, S3 URI, MLflow model name, or absolute path; empty for `demo`."""
    revision: str | None = None
    """Hub branch, tag or commit; MLflow version or `@alias`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one of the reference forms.

        Raises:
            ValueError: the text has none of the forms; the message lists them.
        """
        if text == "demo":
            return cls(kind="demo", location="")
        if text.startswith(("file://", "gguf:")):
            kind: TargetKind = "file" if text.startswith("file://") else "gguf"
            path = text.removeprefix("file://").removeprefix("gguf:").removeprefix("//")
            if not path.startswith("/") or ".." in Path(path).parts or "\x00" in path:
                raise ValueError(f"target {text!r}: expected an absolute path without '..'")
            if kind == "gguf" and not path.endswith(".gguf"):
                raise ValueError(f"target {text!r}: expected a file that ends in .gguf")
            return cls(kind=kind, location=path)
        if m := _S3.fullmatch(text):
            if ".." in m["prefix"].split("/"):
                raise ValueError(f"target {text!r}: '..' is not allowed in an S3 prefix")
            return cls(kind="s3", location=text.rstrip("/"))
        if m := _MLFLOW.fullmatch(text):
            return cls(kind="mlflow", location=m["name"], revision=m["version"] or f"@{m['alias']}")
        if (m := _HUB.fullmatch(text)) and ".." not in text and "--" not in m["repo"]:
            return cls(kind="hub", location=m["repo"], revision=m["revision"])
        raise ValueError(f"target {text!r} is not a reference; expected {TARGET_FORMS}")

    def __str__(self) -> str:
        match self.kind:
            case "demo":
                return "demo"
            case "file":
                return f"file://{self.location}"
            case "gguf":
                return f"gguf:{self.location}"
            case "mlflow":
                sep = "" if (self.revision or "").startswith("@") else "/"
                return f"models:/{self.location}{sep}{self.revision}"
            case _:
                return f"{self.location}@{self.revision}" if self.revision else self.location


class PromptsConfig(Strict):
    """Where prompts come from."""

    source: str = "demo"
    """`demo` (the set that ships here), a path to a JSONL file, `s3://bucket/key.jsonl`, or a hub
    dataset `org/name[@revision][:split]`."""
    limit: Annotated[int, Field(ge=8)] | None = None
    """Use at most this many prompts, chosen by seed; all when empty."""
    heldout: Annotated[int, Field(ge=2)] = 64
    """How many prompts no stage trains on, unless the set marks its own (`"split": "heldout"`)."""
    max_prompt_tokens: Annotated[int, Field(ge=8)] = 1024
    """A longer rendered prompt is left out and counted; one longer than the context is an error."""


class RegenerateConfig(Strict):
    """How the target writes the training responses."""

    max_new_tokens: Annotated[int, Field(ge=4)] = 128
    """Cap on a response, in tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of training responses; held-out responses are always greedy."""
    answers: Annotated[int, Field(ge=1, le=64)] = 1
    """Answers to each training prompt: the first at `temperature`, each further one at
    `further_temperature` with random numbers of its own."""
    further_temperature: Annotated[float, Field(gt=0, le=2)] = 0.8
    batch_size: Annotated[int, Field(ge=1)] = 48
    """Sequences decoded together."""
    token_budget: Annotated[int, Field(ge=64)] | None = None
    """Stop after about this many training response tokens; no limit when empty."""


class ExtractConfig(Strict):
    """How target features are stored."""

    capture_layers: tuple[int, int, int] | None = None
    """Indices into HF `hidden_states` (the residual stream *entering* that layer); the default is
    (2, n // 2, n - 3) of an n-layer target (method: EAGLE-3, section 3.1)."""
    shard_tokens: Annotated[int, Field(ge=256)] = 16384
    """Tokens in one feature shard."""


Share = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Strict):
    """EAGLE-3 with training-time test."""

    ttt_steps: Annotated[int, Field(ge=1, le=16)] = 4
    """S: how many draft steps are unrolled in training."""
    step_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Weight of step k's loss is step_decay ** k."""
    draft_vocab_size: Annotated[int, Field(ge=2)] = 8192
    """Vd; capped at the target's vocabulary."""
    intermediate_size: Annotated[int, Field(ge=8)] | None = None
    """MLP width of the midlayer; the target's when empty."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate of AdamW."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of all steps with a linearly rising learning rate; a cosine to 5% follows."""
    grad_clip: Annotated[float, Field(gt=0)] = 0.5
    """Cap on the gradient's norm."""
    epochs: Annotated[float, Field(gt=0)] = 4.0
    """Passes over the training tokens."""
    batch_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens (prompt and response) in one optimiser step."""
    max_length: Annotated[int, Field(ge=16)] = 2048
    """A longer sample is cut there, and counted."""
    eval_every: Annotated[int, Field(ge=1)] = 50
    """Optimiser steps between held-out evaluations."""
    eval_samples: Annotated[int, Field(ge=1)] = 24
    """Held-out samples of an evaluation, the last by id; the benchmark takes the first by id, so
    that choosing the best checkpoint does not flatter it."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 50
    """Optimiser steps between checkpoints."""


class BenchmarkConfig(Strict):
    """Plain decoding against EAGLE-3 decoding."""

    prompts: Annotated[int, Field(ge=2)] = 8
    """Held-out prompts, the same for both."""
    max_new_tokens: Annotated[int, Field(ge=4)] = 64
    repeats: Annotated[int, Field(ge=1)] = 1
    """Times each prompt is decoded by each method, alternating."""
    depth: Annotated[int, Field(ge=1, le=16)] = 3
    """Draft tokens on the longest path of a round."""
    top_k: Annotated[int, Field(ge=1, le=32)] = 1
    """Children of a node; 1 drafts a chain."""
    total_tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    """Draft nodes verified in a round; `depth` for a chain when empty."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads for both methods; measured and chosen when empty."""


class ProveConfig(Strict):
    """The lossless proof."""

    prompts: Annotated[int, Field(ge=1)] = 16
    max_new_tokens: Annotated[int, Field(ge=4)] = 64


class Recipe(Strict):
    """Everything but the target and its prompts. One YAML file a recipe."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    regenerate: RegenerateConfig = RegenerateConfig()
    extract: ExtractConfig = ExtractConfig()
    train: TrainConfig = TrainConfig()
    benchmark: BenchmarkConfig = BenchmarkConfig()
    prove: ProveConfig = ProveConfig()

    @model_validator(mode="after")
    def _trained_as_deep_as_drafted(self) -> Self:
        if self.benchmark.depth > self.train.ttt_steps:
            raise ValueError(
                f"benchmark.depth {self.benchmark.depth} is deeper than train.ttt_steps "
                f"{self.train.ttt_steps}: acceptance collapses beyond the trained depth"
            )
        return self


class RunConfig(Strict):
    """One run: a recipe applied to a target. Lives in `config.json` of the run directory."""

    target: str
    """The reference as the user gave it."""
    target_dir: str | None = None
    """Where a worker has put the files of an `s3://` or `models:/` target."""
    prompts: PromptsConfig = PromptsConfig()
    prompts_file: str | None = None
    """Where a worker has put the file of an `s3://` prompt set."""
    recipe: Recipe
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
        recipe = yaml.safe_load(text)
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


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merged(out[key], value) if nested else value
    return out
