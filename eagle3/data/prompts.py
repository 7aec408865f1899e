"""Prompt sets: where they come from, and how a line of one is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from eagle3.config import DATASET, RunConfig
from eagle3.data.fetch import hub_errors
from eagle3.data.messages import read_messages, read_tools
from eagle3.data.records import Message, Split
from eagle3.errors import BadInput

EXPECTED = '{"messages": [{"role": …, "content": …}]}, {"conversations": […]} or {"prompt": "…"}'
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


def read_prompts(config: RunConfig) -> list[RawPrompt]:
    """All prompts of the configured source.

    Raises:
        BadInput: the source does not exist or is empty, or lines of it cannot be read; the message
            names the lines and what was expected.
        TargetUnavailable: a hub data set cannot be reached.
    """
    if config.prompts.source == "demo":
        found = [p for file in demo_files() for p in _read_jsonl(file, _demo_split(file))]
    elif (file := prompt_file(config)) is not None:
        found = list(_read_jsonl(file))
    else:
        found = _read_dataset(config.prompts.source)
    if not found:
        raise BadInput(f"{config.prompts.source} holds no prompts", f"expected lines of {EXPECTED}")
    return found


def count_prompts(config: RunConfig) -> int | None:
    """How many prompts a run will use at most; None when only the hub knows.

    Raises:
        BadInput: the prompts are in a file that cannot be read.
    """
    if config.prompts.source != "demo" and prompt_file(config) is None:
        return config.prompts.limit
    found = len(read_prompts(config))
    return found if config.prompts.limit is None else min(found, config.prompts.limit)


def prompt_file(config: RunConfig) -> Path | None:
    """The JSONL file of the source; None when the source is a hub data set."""
    source = config.prompts.source
    if config.prompts_file is not None:
        return Path(config.prompts_file)
    if source.startswith("s3://"):
        raise BadInput(
            f"prompts.source {source} is not on this machine",
            "the service downloads it; without the service, download it and give its path",
        )
    path = Path(source.removeprefix("file://")).expanduser()
    if DATASET.fullmatch(source) and path.suffix not in (".jsonl", ".json") and not path.exists():
        return None
    return path


def demo_files() -> list[Path]:
    folder = Path(str(resources.files("eagle3").joinpath("data", "demo")))
    return sorted(folder.glob("*.jsonl"))


def _demo_split(file: Path) -> Split:
    return "heldout" if file.stem == "heldout" else "train"


def _read_jsonl(file: Path, split: Split | None = None) -> Iterator[RawPrompt]:
    if not file.is_file():
        raise BadInput(
            f"the prompt file {file} does not exist",
            "expected a JSONL file, a hub data set org/name, or demo",
        )
    try:
        # Not splitlines: JSON may hold U+2028 and the like as they are.
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise BadInput(
            f"{file} is not text", f"expected JSONL in UTF-8, lines of {EXPECTED}"
        ) from None
    rows = ((f"{file}, line {n}", line) for n, line in enumerate(lines, 1) if line.strip())
    yield from _parsed(((where, _json(where, line)) for where, line in rows), split)


def _read_dataset(source: str) -> list[RawPrompt]:
    match = DATASET.fullmatch(source)
    assert match is not None
    import datasets  # takes a second and brings pandas along; few runs read a hub data set

    with hub_errors(f"the data set {match['repo']}"):
        commit = HfApi().dataset_info(match["repo"], revision=match["revision"]).sha
        try:
            rows = datasets.load_dataset(
                match["repo"], revision=commit, split=match["split"] or "train"
            )
        except ValueError as e:
            raise BadInput(f"the data set {source} cannot be read: {e}") from None
    named = f"{match['repo']}@{commit}"
    return list(_parsed((f"{named}, row {n}", row) for n, row in enumerate(rows)))


def _json(where: str, line: str) -> Any:
    """The line's value, or the error as a value: `_parsed` lists it with the others."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as e:
        return ValueError(f"{where}: not JSON ({e.msg} at column {e.colno})")
    except RecursionError:
        return ValueError(f"{where}: not a prompt (nested too deeply)")


def _parsed(rows: Iterable[tuple[str, Any]], split: Split | None = None) -> Iterator[RawPrompt]:
    problems: list[str] = []
    for where, row in rows:
        try:
            yield _parse(where, row, split)
        except ValueError as e:
            problems.append(str(e))
            if len(problems) == MAX_PROBLEMS:
                break
    if problems:
        raise BadInput("\n".join(problems), f"expected one object a line: {EXPECTED}")


def _parse(where: str, row: Any, split: Split | None) -> RawPrompt:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping):
        raise ValueError(f"{where}: a {type(row).__name__}, expected an object")
    messages, tools = read_messages(where, row), read_tools(where, row)
    mark = row.get("split", split)
    if mark not in (None, "train", "heldout"):
        raise ValueError(f"{where}: split is {mark!r}, expected train or heldout")
    return RawPrompt(where, messages, mark, tools)
