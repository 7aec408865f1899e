from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from eagle3.config import PromptRef, PromptsConfig, RunConfig, load_recipe
from eagle3.data import dataset
from eagle3.data.prompts import (
    RawPrompt,
    count_prompts,
    prompt_content,
    read_excluded,
    read_prompts,
)
from eagle3.errors import BadInput
from tests.tiny import write_prompts

Read = Callable[..., list[RawPrompt]]
"""Reads lines of a file: text, or what becomes JSON."""


def config(source: Any, **prompts: Any) -> RunConfig:
    return RunConfig(
        target="demo",
        prompts=PromptsConfig(source=str(source), **prompts),
        recipe=load_recipe("quick"),
    )


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_lines(*lines: Any) -> list[RawPrompt]:
        path = tmp_path / "p.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(texts) + "\n")
        return read_prompts(config(path))

    return read_lines


def test_three_forms_become_the_same_messages(read: Read) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    share = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello!"},
    ]
    found = read({"messages": [system, user]}, {"conversations": share}, {"prompt": "Hi"})
    answer = {"role": "assistant", "content": "Hello!"}
    assert [p.messages for p in found] == [[system, user], [system, user, answer], [user]]


def test_a_set_may_mark_its_own_split_and_blank_lines_are_skipped(read: Read) -> None:
    found = read({"prompt": "a", "split": "heldout"}, "", {"prompt": "b"})
    assert [(p.split, p.where.rsplit(" ", 1)[1]) for p in found] == [("heldout", "1"), (None, "3")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 2: not JSON"),
        ('["a"]', "line 2: a list, expected an object"),
        ({"text": "a"}, "line 2: has text; expected messages, conversations or a prompt"),
        ({"prompt": "  "}, "line 2: the user message is empty"),
        ({"prompt": 3}, "line 2: has prompt; expected messages"),
        (
            {"messages": [{"role": "narrator", "content": "x"}]},
            "line 2: unknown role 'narrator', expected one of system, developer, user, assistant",
        ),
        (
            {"conversations": [{"from": "narrator", "value": "x"}]},
            "line 2: unknown role 'narrator', expected one of",
        ),
        ({"messages": [{"content": "x"}]}, "line 2: a message must have 'role' and 'content'"),
        ({"messages": "x"}, "line 2: expected a list of messages, got a str"),
        (
            {"messages": [{"role": "assistant", "content": "x"}]},
            "line 2: the conversation has no user message",
        ),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "line 2: unknown role ['user']"),
        ('{"prompt": "\\ud800"}', "line 2: the user message has half a surrogate pair"),
        ("[" * 100_000, "line 2: not a prompt (nested too deeply)"),
        ({"prompt": "x", "split": "test"}, "line 2: split is 'test', expected train or heldout"),
    ],
)
def test_a_bad_line_is_named(read: Read, line: Any, message: str) -> None:
    with pytest.raises(BadInput) as e:
        read({"prompt": "fine"}, line)
    assert message in str(e.value)
    assert "messages" in e.value.hint


def test_only_a_newline_ends_a_line(read: Read) -> None:
    texts = ["a\u2028b", "c\x85d", "e"]
    found = read(*(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts))
    assert [p.messages[0]["content"] for p in found] == texts


def test_several_problems_are_listed_but_not_all(read: Read) -> None:
    with pytest.raises(BadInput) as e:
        read(*["nope"] * 9)
    assert [f"line {n}:" in str(e.value) for n in (1, 5, 6)] == [True, True, False]


def test_missing_empty_and_binary_files(tmp_path: Path, read: Read) -> None:
    with pytest.raises(BadInput, match=r"none\.jsonl does not exist"):
        read_prompts(config(tmp_path / "none.jsonl"))
    with pytest.raises(BadInput, match="holds no prompts"):
        read("")
    binary = tmp_path / "x.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not text"):
        read_prompts(config(binary))


def test_s3_sets_are_the_files_that_a_worker_brings(tmp_path: Path) -> None:
    sets = {name: f"s3://bucket/{name}.jsonl" for name in "abc"}
    brought = {}
    for name, source in sets.items():
        (tmp_path / name).write_text(json.dumps({"prompt": name}))
        brought[source] = str(tmp_path / name)
    mixed = config("demo", mix=[{"source": sets["a"]}, {"source": sets["b"]}]).model_copy(
        update={"brought": brought}
    )
    assert [p.messages[0]["content"] for p in read_prompts(mixed)] == ["a", "b"]
    apart = config(sets["a"], exclude=[{"source": sets["c"]}]).model_copy(
        update={"brought": brought}
    )
    assert [p.messages[0]["content"] for p in read_excluded(apart)] == ["c"]
    before = prompt_content(apart)
    (tmp_path / "c").write_text('{"prompt": "d"}')
    assert prompt_content(apart)[0] == before[0]
    assert prompt_content(apart)[1] != before[1]


@pytest.mark.parametrize(
    "sets",
    [
        {},
        {"mix": [{"source": "org/set"}, {"source": "s3://bucket/p.jsonl"}]},
        {"exclude": [{"source": "s3://bucket/p.jsonl"}]},
    ],
)
def test_without_a_worker_an_s3_set_is_refused_at_once(
    sets: dict[str, list[dict[str, str]]],
) -> None:
    run = config("demo" if sets else "s3://bucket/p.jsonl", **sets)
    with pytest.raises(BadInput, match=r"s3://bucket/p\.jsonl is not on this machine") as e:
        count_prompts(run)
    assert "without the service, download it" in e.value.hint


def test_demo_set_is_varied_and_has_a_heldout_part() -> None:
    found = read_prompts(config("demo"))
    assert sum(p.split == "heldout" for p in found) == 64
    assert len(found) > 1000
    assert count_prompts(config("demo", limit=100)) == 100


def test_a_data_set_is_pinned_and_counted_by_its_limit_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str | None]] = []

    def pinned(repo: str, revision: str | None) -> str:
        asked.append((repo, revision))
        return "a" * 40

    monkeypatch.setattr(dataset, "pinned", pinned)
    assert count_prompts(config("org/set")) is None
    assert count_prompts(config("org/set@v1:train_sft", limit=50)) == 50
    assert asked == [("org/set", None), ("org/set", "v1")]


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ({"turns": ["a", "b"], "question_id": 1}, ["a", "b"]),
        ({"prompt": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_turns_of_a_question_file_are_user_messages(
    read: Read, line: dict[str, object], asked: list[str]
) -> None:
    [prompt] = read(line)
    assert [(m["role"], m["content"]) for m in prompt.messages] == [("user", a) for a in asked]


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([{"role": "user", "content": "a"}], ["a"]),
        ([{"from": "human", "value": "a"}], ["a"]),
    ],
)
def test_a_named_column_may_hold_any_form(tmp_path: Path, value: object, asked: list[str]) -> None:
    path = write_prompts(tmp_path / "p.jsonl", [{"question": value, "prompt": "not this"}])
    [prompt] = read_prompts(config(path, column="question"))
    assert [m["content"] for m in prompt.messages] == asked


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a"}, "column 'q' is missing or empty; the row has prompt"),
        ({"q": 3}, "q is a int, or empty; expected text, a list of user turns, or messages"),
        ({"q": []}, "q is a list, or empty"),
    ],
)
def test_a_named_column_that_is_not_there(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    path = write_prompts(tmp_path / "p.jsonl", [row])
    with pytest.raises(BadInput, match=re.escape(message)):
        read_prompts(config(path, column="q"))


def test_a_mixture_keeps_its_proportions_and_every_heldout_prompt(tmp_path: Path) -> None:
    a = write_prompts(tmp_path / "a.jsonl", [{"prompt": f"a{i}"} for i in range(30)])
    marked = [{"prompt": "held", "split": "heldout"}]
    b = write_prompts(tmp_path / "b.jsonl", marked + [{"prompt": f"b{i}"} for i in range(10)])
    mix = [{"source": str(a), "weight": 1}, {"source": str(b), "weight": 2}]

    def chosen(seed: int) -> list[str]:
        run = config("demo", mix=mix)
        recipe = run.recipe.model_copy(update={"seed": seed})
        found = read_prompts(run.model_copy(update={"recipe": recipe}))
        return [p.messages[0]["content"] for p in found]

    first = chosen(0)
    assert Counter(text[0] for text in first) == {"a": 5, "h": 1, "b": 10}
    assert chosen(0) == first != chosen(1)
    whole = read_prompts(config("demo", mix=[{"source": str(a)}, {"source": str(b)}]))
    assert len(whole) == 41


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({"source": "a.jsonl", "mix": [{"source": "b.jsonl"}]}, "either source"),
        ({"mix": [{"source": "b.jsonl", "weight": 1}, {"source": "c.jsonl"}]}, "every set a"),
        ({"source": "s3://bucket"}, "expected s3://bucket/key"),
        ({"mix": [{"source": "s3://bucket/folder/"}]}, "expected s3://bucket/key"),
        ({"source": "org/set:train", "split": "test"}, "split is in the source"),
        ({"source": ""}, "at least 1 character"),
    ],
)
def test_a_config_that_says_two_things_is_refused(prompts: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PromptsConfig.model_validate(prompts)


@pytest.mark.parametrize(
    ("text", "kind", "location", "rest"),
    [
        ("demo", "demo", "", (None, None, None)),
        ("s3://bok/k v.jsonl", "s3", "s3://bok/k v.jsonl", (None, None, None)),
        ("org/set", "hub", "org/set", (None, None, None)),
        (
            "org/set@refs/pr/3:main:test[:10%]",
            "hub",
            "org/set",
            ("refs/pr/3", "main", "test[:10%]"),
        ),
        ("org/set:train_sft", "hub", "org/set", (None, None, "train_sft")),
        ("org/set.parquet", "path", "org/set.parquet", (None, None, None)),
        ("./org/set", "path", "./org/set", (None, None, None)),
        ("file:///a/dir", "path", "/a/dir", (None, None, None)),
        ("~/logs", "path", "~/logs", (None, None, None)),
        ("a/b/c", "path", "a/b/c", (None, None, None)),
        ("../../etc", "path", "../../etc", (None, None, None)),
    ],
)
def test_what_a_source_names_does_not_depend_on_the_disk(
    text: str, kind: str, location: str, rest: tuple[str | None, str | None, str | None]
) -> None:
    ref = PromptRef.parse(text)
    assert (ref.kind, ref.location, (ref.revision, ref.config, ref.split)) == (kind, location, rest)
