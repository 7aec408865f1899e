"""Prompt sets: which ones a run reads, and how a row of one becomes a prompt."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3.config import PromptSource, RunConfig, WeightedSource
from eagle3.data.messages import read_messages, read_tools
from eagle3.data.records import Message, Split
from eagle3.data.rows import EXPECTED, TEXT_FORMS, identity, local_path, read_rows
from eagle3.data.tokenised import Tokens, read_tokens
from eagle3.errors import BadInput

MAX_PROBLEMS = 5
"""Problems of a file that are listed before giving up on it."""


@dataclass(frozen=True)
class RawPrompt:
    """A conversation as its source gives it."""

    where: str
    """File and line, or data set and row: for messages to the user."""
    messages: list[Message]
    """The whole conversation, answers too: `Prompt.turns` leaves them out where the target writes
    its own."""
    split: Split | None
    """What the source says about it."""
    tools: list[dict[str, Any]] | None = None
    """JSON schemas of the tools that the conversation may call."""
    tokens: Tokens | None = None
    """The conversation as token ids, where that is what the source has; `messages` is empty."""


def read_prompts(config: RunConfig, unread: list[str] | None = None) -> list[RawPrompt]:
    """All prompts of the configured sets; of a weighted mixture, its share of each.

    Args:
        unread: gets what is wrong with each row that is left out.

    Raises:
        BadInput: a source does not exist or is empty, or more rows of it cannot be read than
            `prompts.bad_rows` allows; the message names rows and what was expected.
        TargetUnavailable: a hub data set is gated or cannot be reached.
    """
    sources = config.prompts.sources
    share, problems = config.prompts.bad_rows, [] if unread is None else unread
    sets = [_read(config, source, share, problems) for source in sources]
    if sources[0].weight is not None:
        sets = weighed(sets, sources, config.recipe.seed)
    return [prompt for part in sets for prompt in part]


def read_excluded(config: RunConfig) -> list[RawPrompt]:
    """The prompts of `prompts.exclude`.

    Raises:
        BadInput, TargetUnavailable: as `read_prompts`.
    """
    share, sources = config.prompts.bad_rows, config.prompts.exclude
    return [prompt for source in sources for prompt in _read(config, source, share, [])]


def count_prompts(config: RunConfig) -> int | None:
    """How many prompts a run will use at most; None when only the hub knows. A hub data set is
    asked for its commit, so that a name that is wrong or gated is found at once.

    Raises:
        BadInput: the prompts are in a file that cannot be read, or that no worker has brought.
        TargetUnavailable: a hub data set is gated or cannot be reached.
    """
    prompts = config.prompts
    everything: tuple[PromptSource, ...] = (*prompts.sources, *prompts.exclude)
    for source in everything:
        if source.ref.kind == "s3":
            local_path(source, config.brought_to(source.source))
    hub = [source for source in everything if source.ref.kind == "hub"]
    for source in hub:
        identity(source)
    if hub:
        return prompts.limit
    read_excluded(config)
    found = len(read_prompts(config))
    return found if prompts.limit is None else min(found, prompts.limit)


def prompt_content(config: RunConfig) -> list[str | None]:
    """What each set holds now, for the cache key of a stage that reads them."""
    everything = (*config.prompts.sources, *config.prompts.exclude)
    return [identity(source, config.brought_to(source.source)) for source in everything]


def weighed(
    sets: list[list[RawPrompt]], sources: tuple[WeightedSource, ...], seed: int
) -> list[list[RawPrompt]]:
    """As many training prompts of each set as its weight asks for, chosen by seed: the largest
    mixture that no set is too small for, one that is all held out aside. Held-out prompts all
    stay."""
    weights = [source.weight or 0.0 for source in sources]
    counts = [sum(p.split != "heldout" for p in part) for part in sets]
    unit = min((n / w for n, w in zip(counts, weights, strict=True) if n), default=0.0)
    found = []
    for part, weight in zip(sets, weights, strict=True):
        train = [i for i, p in enumerate(part) if p.split != "heldout"]
        size = min(len(train), round(unit * weight))
        kept = set(random.Random(seed).sample(train, size))  # noqa: S311 (no secret)
        found.append([p for i, p in enumerate(part) if i in kept or p.split == "heldout"])
    return found


def check_bad_rows(problems: list[str], rows: int, share: float) -> None:
    """Refuse a set with more bad rows than may be left out.

    Raises:
        BadInput: names the first few.
    """
    if len(problems) <= share * rows:
        return
    more = len(problems) - MAX_PROBLEMS
    listed = problems[:MAX_PROBLEMS] + ([f"and {more:,} more"] if more > 0 else [])
    hint = f"expected one object a row: {EXPECTED}"
    if len(problems) < rows / 2:
        hint += "; prompts.bad_rows says what share of the rows may be left out"
    raise BadInput("\n".join(listed), hint)


def _read(
    config: RunConfig, source: PromptSource, share: float, unread: list[str]
) -> list[RawPrompt]:
    found, problems = [], []
    for where, row in read_rows(source, config.brought_to(source.source)):
        try:
            found.append(_parse(where, row, source.column))
        except ValueError as e:
            problems.append(str(e))
    check_bad_rows(problems, len(found) + len(problems), share)
    if not found:
        raise BadInput(f"{source.source} holds no prompts", f"expected rows of {EXPECTED}")
    unread += problems
    return found


def _parse(where: str, row: Any, column: str | None) -> RawPrompt:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping):
        raise ValueError(f"{where}: a {type(row).__name__}, expected an object")
    mark = row.get("split")
    if mark not in (None, "train", "heldout"):
        raise ValueError(f"{where}: split is {mark!r}, expected train or heldout")
    row = _named(where, row, column)
    if row.get("messages") is None and row.get("input_ids") is not None:
        return RawPrompt(where, [], mark, tokens=read_tokens(where, row))
    return RawPrompt(where, read_messages(where, row), mark, read_tools(where, row))


def _named(where: str, row: Mapping[str, Any], column: str | None) -> Mapping[str, Any]:
    """The row with its conversation under a name that `read_messages` knows."""
    if column is None:
        column = next((name for name in TEXT_FORMS if row.get(name) is not None), None)
        if column != "turns" and not (column == "prompt" and isinstance(row["prompt"], list)):
            return row
    elif row.get(column) is None:
        keys = ", ".join(map(str, row)) or "nothing"
        raise ValueError(f"{where}: column {column!r} is missing or empty; the row has {keys}")
    assert column is not None
    value = row[column]
    rest = {key: v for key, v in row.items() if key not in (*TEXT_FORMS, column)}
    if isinstance(value, str):
        return {**rest, "prompt": value}
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{where}: {column} is a {type(value).__name__}, or empty; expected text, a list of "
            "user turns, or messages"
        )
    if all(isinstance(item, str) for item in value):
        return {**rest, "messages": [{"role": "user", "content": item} for item in value]}
    sharegpt = isinstance(value[0], Mapping) and value[0].get("from") is not None
    return {**rest, "conversations" if sharegpt else "messages": value}
