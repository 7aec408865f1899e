import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.config import PromptsConfig, RunConfig, load_recipe
from eagle3.data.prompts import count_prompts, read_prompts
from eagle3.errors import BadInput


def config(source: Any, **prompts: Any) -> RunConfig:
    return RunConfig(
        target="demo",
        prompts=PromptsConfig(source=str(source), **prompts),
        recipe=load_recipe("quick"),
    )


@pytest.fixture
def read(tmp_path: Path):
    def read_lines(*lines: Any):
        path = tmp_path / "p.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(texts) + "\n")
        return read_prompts(config(path))

    return read_lines


def test_three_forms_become_the_same_messages(read):
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    share = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello!"},
    ]
    found = read({"messages": [system, user]}, {"conversations": share}, {"prompt": "Hi"})
    answer = {"role": "assistant", "content": "Hello!"}
    assert [p.messages for p in found] == [[system, user], [system, user, answer], [user]]


def test_a_set_may_mark_its_own_split_and_blank_lines_are_skipped(read):
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
def test_a_bad_line_is_named(read, line: Any, message: str):
    with pytest.raises(BadInput) as e:
        read({"prompt": "fine"}, line)
    assert message in str(e.value)
    assert "messages" in e.value.hint


def test_only_a_newline_ends_a_line(read):
    texts = ["a\u2028b", "c\x85d", "e"]
    found = read(*(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts))
    assert [p.messages[0]["content"] for p in found] == texts


def test_several_problems_are_listed_but_not_all(read):
    with pytest.raises(BadInput) as e:
        read(*["nope"] * 9)
    assert [f"line {n}:" in str(e.value) for n in (1, 5, 6)] == [True, True, False]


def test_missing_empty_and_binary_files(tmp_path: Path, read):
    with pytest.raises(BadInput, match=r"none\.jsonl does not exist"):
        read_prompts(config(tmp_path / "none.jsonl"))
    with pytest.raises(BadInput, match="holds no prompts"):
        read("")
    binary = tmp_path / "x.jsonl"
    binary.write_bytes(b"PAR1\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not text"):
        read_prompts(config(binary))


def test_an_s3_source_needs_the_file_that_a_worker_brings(tmp_path: Path):
    with pytest.raises(BadInput, match="not on this machine"):
        read_prompts(config("s3://bucket/p.jsonl"))
    (tmp_path / "p").write_text('{"prompt": "a"}\n')
    brought = config("s3://bucket/p.jsonl").model_copy(update={"prompts_file": str(tmp_path / "p")})
    assert len(read_prompts(brought)) == 1


def test_demo_set_is_varied_and_has_a_heldout_part():
    found = read_prompts(config("demo"))
    assert sum(p.split == "heldout" for p in found) == 64
    assert len(found) > 1000
    assert count_prompts(config("demo", limit=100)) == 100


def test_a_data_set_is_counted_by_its_limit_only():
    assert count_prompts(config("org/set")) is None
    assert count_prompts(config("org/set@main:train_sft", limit=50)) == 50
