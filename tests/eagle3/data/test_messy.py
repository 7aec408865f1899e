"""Rows and files as they are found: what can be read is read, the rest is refused by name."""

from __future__ import annotations

import gzip
import json
import shutil
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3.config import PromptsConfig, RunConfig, load_recipe
from eagle3.config.prompts import WeightedSource
from eagle3.data.clean import content_id
from eagle3.data.contamination import overlaps
from eagle3.data.dedup import near_copies
from eagle3.data.prompts import read_prompts
from eagle3.errors import BadInput
from tests.eagle3.data.conftest import MakeRun
from tests.tiny import Tiny, write_prompts

HALF = "\ud800"
"""JSON may hold it as an escape; UTF-8 has no bytes for it."""


def read(path: Path) -> list[str]:
    config = RunConfig(
        target="demo", prompts=PromptsConfig(source=str(path)), recipe=load_recipe("quick")
    )
    return [p.messages[0]["content"] for p in read_prompts(config)]


def asked_for(arguments: Any, name: str = "f") -> dict[str, Any]:
    """A conversation whose answer calls a tool."""
    call = {"function": {"name": name, "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "x"}, answer]}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", [None, 1])
def test_files_written_on_windows(tmp_path: Path, mark: str, end: str, indent: int | None) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b\r\nc"}]
    lines = [json.dumps(row) for row in rows]
    text = json.dumps(rows, indent=indent) if indent else "\n".join(lines)
    path = tmp_path / "p q.jsonl"
    path.write_bytes((mark + text.replace("\n", end)).encode())
    assert read(path) == ["a", "b\r\nc"]


def test_a_weighted_set_that_is_all_held_out_leaves_the_others_whole(tmp_path: Path) -> None:
    sets = {"a": None, "b": "heldout"}
    for name, mark in sets.items():
        rows = [{"prompt": f"{name}{n}", "split": mark} for n in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mix = tuple(WeightedSource(source=str(tmp_path / f"{name}.jsonl"), weight=1) for name in sets)
    config = RunConfig(target="demo", prompts=PromptsConfig(mix=mix), recipe=load_recipe("quick"))
    assert [p.split for p in read_prompts(config)] == [None] * 5 + ["heldout"] * 5


def test_a_packed_file_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    with pytest.raises(BadInput, match="packed by gzip"):
        read(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (f'{{"prompt": "x", "n": {"1" * 5000}}}', "not a prompt (a number of more than"),
        ({"prompt": HALF}, "the user message has half a surrogate pair"),
        ({"prompt": "x", "tools": [{"name": HALF}]}, "the list of tools has half a surrogate"),
        ({"prompt": "x", "tools": "[{"}, "tools must be a list of objects"),
        ({"prompt": "x", "tools": "[" * 100_000}, "tools must be a list of objects"),
        (asked_for({"n": HALF}), "the assistant message has half a surrogate pair"),
        (asked_for({}, HALF), "the assistant message has half a surrogate pair"),
        (asked_for(f'{{"n": {"1" * 5000}}}'), "the arguments of f are not an object"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "x"},
                    {"from": "function_call", "tool_calls": [{"name": "f"}]},
                ]
            },
            "a tool call must be an object with a name",
        ),
    ],
)
def test_a_row_that_nothing_could_be_made_of_is_named(
    tmp_path: Path, row: Any, message: str
) -> None:
    path = tmp_path / "p.jsonl"
    text = row if isinstance(row, str) else json.dumps(row)
    path.write_text(f'{{"prompt": "fine"}}\n{text}\n')
    with pytest.raises(BadInput) as e:
        read(path)
    assert f"line 2: {message}" in str(e.value)


def test_a_template_that_fails_on_a_row_names_it(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    """It is a program: what fails need not be an error of the template language."""
    own = shutil.copytree(tiny.path, tmp_path / "own")
    file = own / "chat_template.jinja"
    file.write_text("{% for t in tools or [] %}{{ 1 + t['name'] }}{% endfor %}" + file.read_text())
    lines: list[Mapping[str, object]] = [
        *tiny.prompts(12),
        {"prompt": "t9 t10", "tools": [{"name": "f"}]},
    ]
    run = make_run(target=own, source=write_prompts(tmp_path / "p.jsonl", lines))
    with pytest.raises(
        BadInput, match=r"line 13: the target's chat template refuses .*unsupported"
    ):
        run.run("resolve", "prepare")


def test_accents_written_in_two_ways_are_the_same_question() -> None:
    """macOS writes é as e and an accent, most others as one character."""
    one = "Écrivez une lettre à mon frère aîné pour lui dire où nous étions hier"
    two = unicodedata.normalize("NFD", one)
    assert near_copies([one, two], 0.8)[0].similarity == 1
    assert overlaps([[two]], [[one]], 0.5)[0].share == 1
    ask = [[{"role": "user", "content": text}] for text in (one, two)]
    assert content_id(ask[0]) == content_id(ask[1])
