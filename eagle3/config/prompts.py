"""The section `prompts` of a recipe: which sets of prompts, and what of them is used."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from eagle3.config.reference import PromptRef, Strict

Name = Annotated[str, Field(min_length=1, max_length=256)]


class PromptSource(Strict):
    """One prompt set."""

    source: Annotated[str, Field(min_length=1, max_length=1024)]
    """`demo` (the set that ships here), a file (JSONL, JSON or Parquet), a directory that
    `datasets` can load, `s3://bucket/key.jsonl`, or a hub data set
    `org/name[@revision][:[config:]split]`. A relative directory is written `./name`."""
    config: Name | None = None
    """Configuration (subset) of a data set that has several."""
    split: Name | None = None
    """Split of a data set; `train` when empty."""
    column: Name | None = None
    """Column that holds text, a list of user turns, or messages; when empty, the first there is of
    `messages`, `conversations`, `turns` and `prompt`, or `input_ids` for tokens."""

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        named = PromptRef.parse(self.source)
        for key in ("config", "split"):
            if getattr(self, key) is not None and getattr(named, key) is not None:
                raise ValueError(f"{key} is in the source {self.source} already; say it once")
        return self

    @property
    def ref(self) -> PromptRef:
        """The parsed source, with `config` and `split`."""
        named = PromptRef.parse(self.source)
        said = {"config": self.config or named.config, "split": self.split or named.split}
        return named.model_copy(update=said)


class WeightedSource(PromptSource):
    """One prompt set of a mixture."""

    weight: Annotated[float, Field(gt=0)] | None = None
    """Share of the mixture's training prompts, relative to the other weights; all prompts of every
    set are used when no set has one."""


class PromptsConfig(PromptSource):
    """Where prompts come from."""

    source: Annotated[str, Field(min_length=1, max_length=1024)] = "demo"
    """`demo` (the set that ships here), a file (JSONL, JSON or Parquet), a directory that
    `datasets` can load, `s3://bucket/key.jsonl`, or a hub data set
    `org/name[@revision][:[config:]split]`. A relative directory is written `./name`."""
    mix: tuple[WeightedSource, ...] = ()
    """Several prompt sets, in place of `source`."""
    exclude: tuple[PromptSource, ...] = ()
    """Sets that are never trained on, such as the questions of a benchmark: a training prompt that
    holds one of their prompts is left out, and counted."""
    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = 0.8
    """Leave out a prompt that shares at least this part of its 5-word sequences with an earlier one
    (Jaccard similarity; method: Lee et al. 2022, arXiv 2107.06499); exact copies alone when
    empty."""
    contamination: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Leave out a training prompt that has at least this part of the words of a held-out or
    excluded prompt, in sequences of 8 words (method: Lambert et al. 2024, arXiv 2411.15124); off
    when empty."""
    bad_rows: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a set's rows that may be unreadable, or refused by the target's chat template; they
    are left out and counted. More, and the run ends with their names."""
    limit: Annotated[int, Field(ge=8)] | None = None
    """Use at most this many prompts, chosen by seed; all when empty."""
    heldout: Annotated[int, Field(ge=2)] = 64
    """How many prompts no stage trains on, unless the set marks its own (`"split": "heldout"`)."""
    max_prompt_tokens: Annotated[int, Field(ge=8)] = 1024
    """A longer rendered prompt is left out and counted; one that is not longer and yet does not fit
    the target's context counts as a bad row."""

    @model_validator(mode="after")
    def _one_way_to_name_sets(self) -> Self:
        if self.mix and (self.source != "demo" or self.config or self.split or self.column):
            raise ValueError("give either source (with config, split, column) or mix, not both")
        if len({s.weight is None for s in self.mix}) > 1:
            raise ValueError("mix: give every set a weight, or none")
        return self

    @property
    def sources(self) -> tuple[WeightedSource, ...]:
        """The sets to train on: the mixture, or the one source."""
        if self.mix:
            return self.mix
        one = self.model_dump(include={"source", "config", "split", "column"})
        return (WeightedSource(**one),)

    @property
    def name(self) -> str:
        """The source, or the sources of the mixture."""
        return " + ".join(s.source for s in self.sources)
