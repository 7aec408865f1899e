"""What a user asks for: the job spec. The same model is the API's body and the job file.

Strict: an unknown key is an error, and an error names the field's full path.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from eagle3.config import (
    STAGES,
    EngineName,
    PromptRef,
    PromptsConfig,
    Recipe,
    RunConfig,
    Strict,
    TargetRef,
    load_recipe,
    recipe_names,
)
from jobs.attach_policy import AttachPolicy
from jobs.errors import FieldError, InvalidSpec
from jobs.evaluate_spec import Evaluate
from jobs.needs import NEEDS_PATTERN, parse_gpus
from jobs.settings import Settings

Label = Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
LABEL_NAME_PATTERN = r"^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$"
StageName = Literal[(*STAGES, "probe", "register")]  # type: ignore[valid-type]
LabelName = Annotated[str, Field(pattern=LABEL_NAME_PATTERN)]


class Gates(Strict):
    """What a draft must reach to become champion."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    min_tau: Annotated[float, Field(ge=1)] | None = None
    """Least tokens per target pass, measured on held-out prompts."""
    min_speedup: Annotated[float, Field(gt=0)] | None = None
    """Least speedup over plain decoding, measured in the same process."""
    lossless: bool = True
    """Require the lossless proof. A draft that changes a token fails the job."""
    parity: bool = True
    """Require that every engine loads the draft, accepts what training says and writes the target's
    own text."""


class StageLimits(Strict):
    """How long the stages may take; less than the deployment allows, never more."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    seconds: dict[StageName, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Longest time of a stage, all its attempts together: `{"train": 7200}`."""
    no_progress_seconds: Annotated[float, Field(gt=0)] | None = None
    """A stage that prints nothing for this long is stopped and tried again."""


class JobSpec(Strict):
    """One job: make a draft for `target`."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"target": "demo", "recipe": "quick"},
                {
                    "target": "HuggingFaceTB/SmolLM2-135M-Instruct@main",
                    "recipe": "standard",
                    "overrides": {"train": {"epochs": 8}},
                    "gates": {"min_tau": 1.75, "min_speedup": 1.0},
                    "labels": {"team": "serving"},
                },
            ]
        },
    )

    target: Annotated[str, Field(min_length=1, max_length=1024)]
    """`org/name[@revision]`, `s3://bucket/prefix`, `models:/name/version`, `models:/name@alias`,
    `file:///abs/dir`, `gguf:/abs/file.gguf` or `demo`."""
    recipe: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] = "standard"
    """Name of a recipe that ships with the project."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Recipe keys to change, nested as in the recipe: `{"train": {"epochs": 2}}`."""
    prompts: Annotated[PromptsConfig, Field(validate_default=True)] = PromptsConfig()
    """Where the prompts come from; what is not said comes from the recipe."""
    engines: Annotated[tuple[EngineName, ...], Field(min_length=1)] | None = None
    """Serving engines that the draft is tried in before it is registered; the recipe's when
    empty."""
    gates: Gates = Gates()
    """What the draft must reach."""
    needs: Annotated[str, Field(pattern=NEEDS_PATTERN)] | None = None
    """What a worker must have for the stages that load the target: `any`, `cpu` (no GPU is used),
    `gpu`, `gpux2`, `gpu:h100` or `gpu:h100x8`. The deployment's `default_needs` when empty."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher goes first; a key has a highest one that it may ask for."""
    limits: StageLimits = StageLimits()
    """How long the stages may take."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Seed of the run; the recipe's when empty."""
    labels: Annotated[dict[LabelName, Label], Field(max_length=32)] = Field(default_factory=dict)
    """Free labels to filter jobs by."""
    model_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,127}$")] | None = None
    """Name in the model registry; made from the target when empty."""
    attach: AttachPolicy | None = None
    """Try the drafts that exist first, and train only where none will do."""
    evaluate: Evaluate | None = None
    """Measure a registered draft on the target, and train nothing."""

    @field_validator("target")
    @classmethod
    def _target_parses(cls, text: str) -> str:
        TargetRef.parse(text)
        return text

    @field_validator("needs")
    @classmethod
    def _needs_parse(cls, text: str | None) -> str | None:
        if text is not None:
            parse_gpus(text)
        return text

    @field_validator("recipe")
    @classmethod
    def _recipe_exists(cls, name: str) -> str:
        if name not in _names():
            raise ValueError(f"no recipe {name!r}; expected one of {', '.join(_names())}")
        return name

    @field_validator("overrides")
    @classmethod
    def _overrides_fit(cls, overrides: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" in overrides or "seed" in overrides:
            raise ValueError("name and seed are not overrides; set `recipe` and `seed` of the job")
        if recipe := info.data.get("recipe"):
            _recipe(recipe, overrides)  # a ValidationError keeps its paths below `overrides`
        return overrides

    @field_validator("prompts", mode="before")
    @classmethod
    def _prompts_of_the_recipe(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, PromptsConfig):
            given = given.model_dump(exclude_unset=True)
        if "recipe" in info.data and "overrides" in info.data and isinstance(given, dict):
            recipe = _recipe(info.data["recipe"], info.data["overrides"])
            return recipe.with_prompts(given).prompts
        return given

    @model_validator(mode="after")
    def _one_purpose(self) -> Self:
        if self.attach is not None and self.evaluate is not None:
            raise ValueError("a job attaches a draft or evaluates one; leave one of the two out")
        return self

    @property
    def target_ref(self) -> TargetRef:
        """The parsed target."""
        return TargetRef.parse(self.target)

    def resolved_recipe(self) -> Recipe:
        """The recipe with this job's overrides, engines, seed and prompts."""
        own = {"seed": self.seed, "engines": self.engines}
        said = {name: value for name, value in own.items() if value is not None}
        recipe = _recipe(self.recipe, {**self.overrides, **said})
        return recipe.model_copy(update={"prompts": self.prompts})

    def run_config(self, settings: Settings) -> RunConfig:
        """What the stages of this job are told; goes into `config.json` of the run directory."""
        return RunConfig(
            target=self.target,
            prompts=self.prompts,
            recipe=self.resolved_recipe(),
            price_per_hour=settings.price_per_hour,
        )

    def registry_name(self) -> str:
        """Name of the registered model, `eagle3--org--name` unless the job names it."""
        if self.model_name:
            return self.model_name
        ref = self.target_ref
        tail = ref.location.removeprefix("s3://").rstrip("/").removesuffix(".gguf")
        parts = [p for p in tail.split("/") if p][-2:] or [ref.kind]
        name = "--".join(["eagle3", *parts])[:250]
        return re.sub(r"[^\w.-]", "-", name)  # MLflow refuses `:`, and `@` parts an alias here


def _recipe(name: str, overrides: dict[str, Any]) -> Recipe:
    return load_recipe(name, overrides) if overrides else _shipped(name)


@cache
def _names() -> list[str]:
    return recipe_names()


@cache
def _shipped(name: str) -> Recipe:
    """A recipe as it is: most jobs change nothing, and each asks for it four times."""
    return load_recipe(name)


def parse_spec(data: Any) -> JobSpec:
    """Validate a job body or a parsed job file.

    Raises:
        InvalidSpec: with one entry for each wrong field.
    """
    try:
        return JobSpec.model_validate(data)
    except ValidationError as e:
        raise InvalidSpec(field_errors(e)) from None


def field_errors(error: ValidationError) -> list[FieldError]:
    """The problems of a validation error, each with its field's dotted path."""
    return [
        FieldError(
            pointer=".".join(str(part) for part in e["loc"]) or "job",
            detail=e["msg"].removeprefix("Value error, "),
        )
        for e in error.errors(include_url=False, include_context=False)
    ]


def check_allowed(spec: JobSpec, settings: Settings) -> None:
    """Refuse places this deployment does not let a job read from.

    Raises:
        InvalidSpec: a local path outside `target_roots` (full mode), an S3 place outside
            `s3_allowed`, or a server outside `engines_allowed`.
    """
    errors: list[FieldError] = []
    ref = spec.target_ref
    if ref.kind in ("file", "gguf") and not path_allowed(Path(ref.location), settings):
        errors.append(_refused("target", ref.location, "UPDRAFT_TARGET_ROOTS"))
    if ref.kind == "s3" and not s3_allowed(ref.location, settings):
        errors.append(_refused("target", ref.location, "UPDRAFT_S3_ALLOWED"))
    for pointer, source in prompt_sources(spec.prompts):
        if source.startswith("s3://"):
            if not s3_allowed(source, settings):
                errors.append(_refused(pointer, source, "UPDRAFT_S3_ALLOWED"))
        elif is_local_path(source) and not path_allowed(local_path(source), settings):
            errors.append(_refused(pointer, source, "UPDRAFT_TARGET_ROOTS"))
    recipe = spec.resolved_recipe()
    draft, server = recipe.train.start_from or "", recipe.regenerate.base_url
    if draft.startswith("/") and not path_allowed(Path(draft), settings):
        errors.append(_refused("overrides.train.start_from", draft, "UPDRAFT_TARGET_ROOTS"))
    if server is not None and not server_allowed(server, settings):
        pointer = "overrides.regenerate.base_url"
        errors.append(_refused(pointer, server, "UPDRAFT_ENGINES_ALLOWED"))
    if errors:
        raise InvalidSpec(errors)


def prompt_sources(prompts: PromptsConfig) -> list[tuple[str, str]]:
    """Each source that is read, with the path of its field."""
    found = [] if prompts.mix else [("prompts.source", prompts.source)]
    for name, sets in (("mix", prompts.mix), ("exclude", prompts.exclude)):
        found += [(f"prompts.{name}.{i}.source", one.source) for i, one in enumerate(sets)]
    return found


def is_local_path(source: str) -> bool:
    """Whether a prompts source names a file or directory rather than `demo`, S3 or a hub data set:
    whatever the stages would look for on a disk."""
    return PromptRef.parse(source).kind == "path"


def local_path(source: str) -> Path:
    """The file that a local prompts source names."""
    return Path(source.removeprefix("file://"))


def path_allowed(path: Path, settings: Settings) -> bool:
    """Any path in embedded mode; in full mode, an absolute one inside a root, links resolved."""
    if settings.mode == "embedded":
        return True
    if not path.is_absolute():  # means another file in each process
        return False
    resolved = path.resolve()
    return any(resolved.is_relative_to(root.resolve()) for root in settings.target_roots)


def s3_allowed(uri: str, settings: Settings) -> bool:
    """Whether an `s3://` URI lies under one of the allowed roots, by whole path segments."""
    roots = (root.rstrip("/") for root in settings.s3_allowed)
    return ".." not in uri.split("/") and any(
        uri == root or uri.startswith(f"{root}/") for root in roots
    )


def server_allowed(url: str, settings: Settings) -> bool:
    """Whether a server of models is one that this deployment lets jobs talk to."""
    return url.rstrip("/") in {allowed.rstrip("/") for allowed in settings.engines_allowed}


def _refused(pointer: str, place: str, setting: str) -> FieldError:
    return FieldError(
        pointer=pointer,
        detail=f"{place} is not an allowed place; expected one inside {setting}",
    )


JOB_TEMPLATE = """\
# A job for `updraft submit -f job.yaml`. Every key but `target` may be left out.
# yaml-language-server: $schema=./job.schema.json

# What to make a draft for: org/name[@revision], s3://bucket/prefix, models:/name/version,
# models:/name@alias, file:///abs/dir, gguf:/abs/file.gguf, or demo.
target: demo

# How: `quick` (minutes), `standard` (about an hour for a small target on two cores), `paper`,
# `reasoning` or `domain` (docs/recipes.md).
recipe: quick

# Recipe keys to change, nested as in the recipe.
overrides: {}
#  train: {epochs: 8}
#  prove: {prompts: 50}

# Training and held-out prompts: demo, a file (JSONL, JSON, Parquet), a directory,
# s3://bucket/key.jsonl, or a hub data set org/name[@revision][:[config:]split].
prompts:
  source: demo
#  limit: 500
#  heldout: 64

# Serving engines that it is tried in first: native (ours), llamacpp, vllm, sglang.
# engines: [native, llamacpp]

# What the draft must reach to become champion.
gates:
  lossless: true
#  min_tau: 1.3
#  min_speedup: 1.0

# What a worker must have, which jobs go first, and how long stages may take.
# needs: gpu:h100
# priority: 0
# limits: {seconds: {train: 7200}}
# labels: {team: serving}
# seed: 0
# model_name: my-draft

# Try the drafts that exist first, and train only where none will do (docs/attach.md).
# attach: {reuse_above: 0.9, warm_start_above: 0.2}

# Measure a registered draft on the target, and train nothing (`updraft evaluate`).
# evaluate: {draft: dft_01kb8m2v9x3tq7c5}
"""
"""What `updraft init` writes."""
