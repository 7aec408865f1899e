"""Task files: what is read, and what is refused by name and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.bench.tasks import Question, read_tasks
from eagle3.errors import BadInput


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


GOOD = {"question_id": 7, "category": "math", "turns": ["1 + 1?", "And 2?"], "reference": ["2"]}


def test_a_file_is_a_task_and_a_directory_is_several(tmp_path: Path) -> None:
    write(tmp_path / "sums.jsonl", GOOD, {"question_id": "b", "turns": ["Hi"]})
    write(tmp_path / "words.jsonl", GOOD)
    (one,) = read_tasks(str(tmp_path / "sums.jsonl"))
    assert one.name == "sums"
    assert one.questions[0] == Question("7", "math", ("1 + 1?", "And 2?"))
    assert one.questions[1] == Question("b", "", ("Hi",))
    assert [task.name for task in read_tasks(str(tmp_path))] == ["sums", "words"]
    named = read_tasks(f"math, {tmp_path / 'words.jsonl'}")
    assert [task.name for task in named] == ["math", "words"]


def test_the_tasks_that_ship() -> None:
    tasks = read_tasks("demo")
    assert [task.name for task in tasks] == ["chat", "code", "instructions", "math", "summary"]
    assert {len(task.questions) for task in tasks} == {8}
    assert all(len(question.turns) == 2 for question in tasks[0].questions)
    ids = [question.id for task in tasks for question in task.questions]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([GOOD, {**GOOD, "question_id": 8, "prompt": "x"}], "line 2: prompt"),
        ([GOOD, GOOD], "line 2: question_id 7 is there twice"),
        ([{"question_id": 1}], "line 1: turns"),
        ([{"question_id": 1, "turns": []}], "line 1: turns"),
        ([{"question_id": 1, "turns": [" "]}], "line 1: a turn is empty"),
        ([{"question_id": 1, "turns": "text"}], "turns: Input should be a valid list"),
        (["words"], "line 1 is not an object"),
        ([], "holds no questions"),
    ],
)
def test_a_line_that_is_no_question_is_refused(tmp_path: Path, lines: list[Any], said: str) -> None:
    path = write(tmp_path / "bad.jsonl", *lines)
    with pytest.raises(BadInput, match=said):
        read_tasks(str(path))


def test_broken_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(GOOD) + "\n{oops\n")
    with pytest.raises(BadInput, match="line 2: not JSON"):
        read_tasks(str(path))


def test_a_file_that_is_not_text_is_refused_in_the_words_of_tasks(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\x1f\x8b\x00\xff")
    with pytest.raises(BadInput, match="packed by gzip") as refused:
        read_tasks(str(path))
    assert "question_id" in refused.value.hint


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("", "no task is named"),
        ("nowhere.jsonl", "there is no task nowhere.jsonl"),
        ("mt_bench", "there is no task mt_bench"),
        ("s3://bucket/mt_bench.jsonl", "not on this machine"),
        ("s3://bucket", "--tasks: 's3://bucket' is not the address of a file"),
        ("math,demo", "two tasks are called math"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(names: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_tasks(names)
