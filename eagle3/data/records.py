"""What the data stages hand each other, one JSON object a line: prompts, then responses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Split = Literal["train", "heldout"]
Message = dict[str, Any]
"""`role` (system, user, assistant or tool), `content`, and what `messages.py` says of each role."""


class Record(BaseModel):
    """Base of the records: immutable, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompt(Record):
    """A conversation. Its answers are those of the set; `turns` leaves them out."""

    id: str
    split: Split
    messages: list[Message]
    prompt_tokens: int
    """Length of the rendered conversation, its answers left out."""
    tools: list[dict[str, Any]] | None = None
    """JSON schemas of the tools that the conversation may call."""
    ids: list[int] | None = None
    """Token ids, where the set has those: the target goes on from them, or, with `spans`, they are
    the whole conversation."""
    spans: list[tuple[int, int]] | None = None
    """Half-open ranges of `ids` that are answers; the target writes none of its own then."""

    def turns(self) -> list[list[Message]]:
        """The messages that come before each answer that the target is to write."""
        return turns(self.messages)


def turns(messages: list[Message]) -> list[list[Message]]:
    """What comes before each answer of a conversation, answers left out; each turn ends with a
    user's message. It ends where a tool was called: what the tool returned answers a call that the
    target may not make."""
    found: list[list[Message]] = [[]]
    for message in messages:
        if message["role"] == "tool" or message.get("tool_calls"):
            break
        if message["role"] != "assistant":
            found[-1].append(message)
        if message["role"] == "user":
            found.append([])
    return found[:-1]


class Written(Record):
    """A conversation up to where its chat template begins to show it otherwise."""

    ids: list[int]
    spans: list[tuple[int, int]]


class Response(Record):
    """A whole conversation as token ids, with the answers that the target wrote."""

    id: str
    split: Split
    ids: list[int]
    spans: list[tuple[int, int]]
    """Half-open ranges of `ids`: answer tokens, a generated end-of-turn included."""
    finish: Literal["eos", "length"]
    """How the last answer ended."""
    earlier: list[Written] = []
    """What stood before each time that the chat template changed earlier answers (as those do that
    remove reasoning): answers are trained on after the text that they were written after."""

    def answer_tokens(self) -> int:
        earlier = [span for part in self.earlier for span in part.spans]
        return sum(end - start for start, end in [*earlier, *self.spans])

    def samples(self) -> list[Response]:
        """The earlier parts as samples of their own, `id.0`, `id.1`, …, then the conversation."""
        parts = [
            self.model_copy(
                update={"id": f"{self.id}.{n}", "earlier": [], "finish": "eos", **vars(part)}
            )
            for n, part in enumerate(self.earlier)
        ]
        return [*parts, self.model_copy(update={"earlier": []})]


R = TypeVar("R", bound=Record)


def read_records(path: Path, kind: type[R]) -> list[R]:
    """All records of a file that a stage has finished."""
    with path.open("rb") as f:
        return [kind.model_validate_json(line) for line in f]


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a file so that a reader sees all of it or none."""
    tmp = path.with_name(path.name + ".tmp")
    with tmp.open("w") as f:
        for record in records:
            f.write(record.model_dump_json(exclude_defaults=True) + "\n")
    tmp.replace(path)


def read_journal(path: Path, kind: type[R]) -> tuple[list[R], int]:
    """The records before a line that cannot be read or was cut, and the bytes that they take."""
    records: list[R] = []
    whole = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            record = kind.model_validate_json(line)
        except ValidationError:
            break
        if not line.endswith(b"\n"):
            break
        records.append(record)
        whole += len(line)
    return records, whole


class Journal(Generic[R]):
    """Records appended as they come, so that a killed process loses at most the last line. What
    stands after a line that cannot be read (a machine that lost power) is made anew, too."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records: list[R] = []
        if path.is_file():
            self.records, whole = read_journal(path, kind)
            os.truncate(path, whole)
        self._file = path.open("a")

    def append(self, record: R) -> None:
        self._file.write(record.model_dump_json() + "\n")
        self._file.flush()
        self.records.append(record)

    def close(self) -> None:
        self._file.close()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
