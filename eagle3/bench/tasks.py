"""The questions that methods are compared on, in the format of the EAGLE papers' task files.

One JSON object a line: `question_id`, `category`, `turns` (what the user says, turn by turn), and
perhaps `reference` (right answers, which speed does not need and nothing here reads).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from eagle3.config import PromptRef, explain
from eagle3.config.reference import Strict
from eagle3.data.dataset import dataset_name, open_dataset
from eagle3.data.rows import json_rows
from eagle3.errors import BadInput

EXPECTED = (
    '{"question_id": 1, "category": "math", "turns": ["…"], "reference": ["…"]}, '
    "category and reference at will"
)


class _Line(Strict):
    """One line of a task file."""

    question_id: int | str
    turns: list[str] = Field(min_length=1)
    category: str = ""
    reference: Any = None


@dataclass(frozen=True)
class Question:
    """What a user says, turn by turn."""

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    name: str
    questions: list[Question]
    source: str
    """Where it was read: a path, a hub data set at a commit, or `demo`."""


def read_tasks(names: str) -> list[Task]:
    """The tasks that a comma-separated list names.

    `demo` is all tasks that ship here, and the name of one of them is that one. Other names are a
    task file, a directory of task files, or a hub data set, each as a prompt source is written.

    Raises:
        BadInput: a name leads nowhere, a line is not a question, or two tasks have one name.
        TargetUnavailable: a hub data set is gated or cannot be reached.
    """
    tasks = [task for name in names.split(",") if name.strip() for task in _read(name.strip())]
    if not tasks:
        raise BadInput("no task is named", f"for instance: --tasks demo, or {_shipped_names()}")
    twice = sorted({task.name for task in tasks if sum(t.name == task.name for t in tasks) > 1})
    if twice:
        raise BadInput(
            f"two tasks are called {', '.join(twice)}",
            "a name is a column: name each task once, and rename one of two files",
        )
    return tasks


def _read(name: str) -> list[Task]:
    shipped = _shipped()
    if name == "demo":
        return [_task(file, f"demo/{file.stem}") for file in shipped]
    if file := next((file for file in shipped if file.stem == name), None):
        return [_task(file, f"demo/{name}")]
    try:
        ref = PromptRef.parse(name)
    except ValueError as e:
        raise BadInput(f"--tasks: {e}", "download the file and give its path") from None
    if ref.kind == "hub":
        rows = open_dataset(ref)
        source = dataset_name(ref)
        numbered = ((f"{source}, row {n}", row) for n, row in enumerate(rows))
        return [Task(ref.location.rpartition("/")[2], _questions(source, numbered), source)]
    if ref.kind == "s3":
        raise BadInput(
            f"the tasks of {name} are not on this machine", "download the file and give its path"
        )
    path = Path(ref.location).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise BadInput(f"{path} holds no task files", "expected files that end in .jsonl")
        return [_task(file, str(file)) for file in files]
    if not path.is_file():
        raise BadInput(
            f"there is no task {name}",
            f"expected demo, one of {_shipped_names()}, a .jsonl file, a directory of them, or a "
            "hub data set org/name",
        )
    return [_task(path, str(path))]


def _task(file: Path, source: str) -> Task:
    return Task(file.stem, _questions(str(file), json_rows(file, EXPECTED)), source)


def _questions(source: str, rows: Iterable[tuple[str, Any]]) -> list[Question]:
    found: dict[str, Question] = {}
    for where, row in rows:
        question = _question(where, row)
        if question.id in found:
            raise BadInput(
                f"{where}: question_id {question.id} is there twice", "give each question its own"
            )
        found[question.id] = question
    if not found:
        raise BadInput(f"{source} holds no questions", f"expected lines such as {EXPECTED}")
    return list(found.values())


def _question(where: str, row: Any) -> Question:
    if isinstance(row, ValueError):
        raise BadInput(str(row), f"expected one object a line: {EXPECTED}")
    if not isinstance(row, dict):
        raise BadInput(f"{where} is not an object", f"expected {EXPECTED}")
    try:
        line = _Line.model_validate(row)
    except ValidationError as e:
        raise BadInput(f"{where}: {explain(e)}", f"expected {EXPECTED}") from None
    if not all(turn.strip() for turn in line.turns):
        raise BadInput(f"{where}: a turn is empty", "every turn is something that the user says")
    return Question(str(line.question_id), line.category, tuple(line.turns))


def _shipped() -> list[Path]:
    return sorted(Path(str(resources.files("eagle3").joinpath("tasks"))).glob("*.jsonl"))


def _shipped_names() -> str:
    return ", ".join(file.stem for file in _shipped())
