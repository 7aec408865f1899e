"""Files, directories and data sets, read through the real `datasets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3.config import PromptsConfig, PromptSource, RunConfig, load_recipe
from eagle3.data import dataset
from eagle3.data.prompts import RawPrompt, read_prompts
from eagle3.data.rows import identity, read_rows
from eagle3.errors import BadInput, StageError, TargetUnavailable
from tests.tiny import write_prompts

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def prompts(source: Any, **more: Any) -> list[RawPrompt]:
    run = RunConfig(
        target="demo",
        prompts=PromptsConfig(source=str(source), **more),
        recipe=load_recipe("quick"),
    )
    return read_prompts(run)


def contents(found: list[RawPrompt]) -> list[str]:
    return [p.messages[0]["content"] for p in found]


def parquet(path: Path, **columns: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_of_messages_and_its_rows_are_named(tmp_path: Path) -> None:
    found = prompts(parquet(tmp_path / "p.parquet", id=[1, 2], messages=[CHAT, CHAT[:1]]))
    assert found[0].messages == CHAT
    assert found[1].where.endswith("p.parquet, row 1")


def test_parquet_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = parquet(tmp_path / "brought.jsonl", prompt=["a"])
    assert contents(prompts(path)) == ["a"]


@pytest.mark.parametrize("name", ["share.json", "brought.jsonl"])
def test_a_json_list_is_read_item_by_item(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps([{"conversations": [{"from": "human", "value": "a"}]}, {"x": 1}]))
    with pytest.raises(BadInput, match=rf"{name}, item 1: has x"):
        prompts(path)
    path.write_text('[{"prompt": "a"')
    with pytest.raises(BadInput, match=rf"{name}: not JSON"):
        prompts(path)


@pytest.mark.parametrize(
    ("columns", "more", "message", "hint"),
    [
        ({"prompt": ["a"]}, {"column": "question"}, "no column 'question'", "columns: prompt"),
        ({"text": ["a"]}, {}, "has none of the columns messages", "prompts.column"),
        ({"prompt": pa.array([], pa.string())}, {}, "holds no prompts", "expected rows of"),
        ({"messages": [[1, 2]]}, {}, "row 0: a message must have 'role'", "expected one object"),
        ({"messages": ["text"]}, {}, "row 0: expected a list of messages, got a str", ""),
        ({"conversations": [[{"from": "human"}]]}, {}, "'from' and 'value'", ""),
        ({"prompt": [7]}, {}, "row 0: has prompt; expected messages", ""),
    ],
)
def test_bad_parquet(
    tmp_path: Path, columns: dict[str, list[Any]], more: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(BadInput) as e:
        prompts(parquet(tmp_path / "p.parquet", **columns), **more)
    assert message in str(e.value)
    assert hint in e.value.hint


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "p.parquet", prompt=["a"] * 100)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        prompts(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of two configurations."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: a\n  data_files:\n  - {split: train, path: a.jsonl}\n"
        "  - {split: test, path: t.jsonl}\n- config_name: b\n  data_files: b.jsonl\n---\n"
    )
    write_prompts(folder / "a.jsonl", [{"prompt": "a1"}, {"prompt": "a2"}])
    write_prompts(folder / "t.jsonl", [{"prompt": "t1"}])
    write_prompts(folder / "b.jsonl", [{"prompt": "b1", "other": "x"}])
    return folder


def test_a_directory_with_configurations_and_splits(folder: Path) -> None:
    assert contents(prompts(folder, config="a")) == ["a1", "a2"]
    assert contents(prompts(folder, config="a", split="test")) == ["t1"]
    assert contents(prompts(folder, config="a", split="train[1:]")) == ["a2"]
    assert contents(prompts(folder, config="b")) == ["b1"]


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        ({}, "has several configurations", "expected one of 'a', 'b'"),
        ({"config": "c"}, "no configuration 'c'", "expected one of 'a', 'b'"),
        ({"config": "a", "split": "dev"}, "no split 'dev'", "expected one of train, test"),
        ({"config": "a", "column": "q"}, "no column 'q'", "its columns: prompt"),
    ],
)
def test_what_a_directory_lacks(
    folder: Path, more: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(BadInput) as e:
        prompts(folder, **more)
    assert message in str(e.value)
    assert hint in e.value.hint


@pytest.mark.parametrize("source", ["set", "set/train.parquet"])
def test_of_a_tables_own_split_column_only_heldout_is_a_mark(tmp_path: Path, source: str) -> None:
    marks = ["train", "train_sft", "heldout"]
    parquet(tmp_path / "set" / "train.parquet", prompt=["a", "b", "c"], split=marks)
    assert [p.split for p in prompts(tmp_path / source)] == [None, None, "heldout"]


def test_a_directory_is_read_again_when_a_file_of_it_changes(folder: Path) -> None:
    source = PromptSource(source=str(folder), config="a")
    before = identity(source)
    write_prompts(folder / "a.jsonl", [{"prompt": "new"}])
    assert identity(source) != before
    assert contents(prompts(folder, config="a")) == ["new"]


def test_what_save_to_disk_wrote(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"prompt": ["a", "b"]})
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(extra=rows).save_to_disk(str(tmp_path / "many"))
    assert contents(prompts(tmp_path / "one")) == ["a", "b"]
    assert contents(prompts(tmp_path / "many", split="extra")) == ["a", "b"]
    with pytest.raises(BadInput, match="no split 'train'"):
        prompts(tmp_path / "many")


def test_rows_of_other_shapes_in_one_file_are_named_one_by_one(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"messages": CHAT[:1]},
        {"messages": "y"},
        {"messages": [{"role": "user"}]},
    ]
    (tmp_path / "set").mkdir()
    write_prompts(tmp_path / "set" / "train.jsonl", lines)
    with pytest.raises(BadInput) as e:
        prompts(tmp_path / "set")
    assert "row 1: expected a list of messages" in str(e.value)
    assert "row 2: " in str(e.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.py", b"raise SystemExit('it ran')", "code of a data set is never run"),
        ("train.jsonl", b'{"prompt": "a"}\n{bad\n', "cannot be read: JSON parse error"),
        ("train.parquet", b"PAR1junk", "cannot be read"),
        ("train.pkl", b"\x80\x04N.", "cannot be read: No (supported) data files found"),
        ("train.png", b"\x89PNG", "is in the format imagefolder"),
        (".keep", b"", "doesn't contain any data files"),
    ],
)
def test_directories_that_are_not_read(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(content)
    with pytest.raises(BadInput) as e:
        prompts(tmp_path / "set")
    assert message in str(e.value)


def test_a_directory_that_looks_like_a_name_must_say_which_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "set").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as e:
        list(read_rows(PromptSource(source="org/set")))
    assert "write ./org/set" in e.value.hint


class TestHub:
    """What a data set of the hub does, with the hub's files in a directory."""

    @pytest.fixture
    def hub(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
        real, asked = datasets.load_dataset_builder, []

        def load(path: str, name: str | None, revision: str | None) -> Any:
            asked.append((path, revision))
            return real(str(folder), name=name)

        monkeypatch.setattr(datasets, "load_dataset_builder", load)
        monkeypatch.setattr(dataset, "pinned", lambda repo, rev: "c" * 40)
        return asked

    def test_it_is_read_at_its_commit_and_rows_say_so(self, hub: list[tuple[str, Any]]) -> None:
        [first, _] = prompts("org/set@main:a:train")
        assert hub == [("org/set", "c" * 40)]
        assert first.where == f"org/set@{'c' * 40}, row 0"
        assert identity(PromptSource(source="org/set@main:a:train")) == f"org/set@{'c' * 40}"

    @pytest.mark.parametrize(
        ("error", "kind", "message"),
        [
            (
                datasets.exceptions.DatasetNotFoundError("Dataset 'x' is a gated dataset"),
                TargetUnavailable,
                "is gated",
            ),
            (ConnectionError("Couldn't reach"), TargetUnavailable, "cannot be reached"),
            (datasets.exceptions.DatasetNotFoundError("doesn't exist"), BadInput, "doesn't exist"),
        ],
    )
    def test_what_the_hub_refuses(
        self,
        hub: list[tuple[str, Any]],
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        kind: type[StageError],
        message: str,
    ) -> None:
        def load(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(datasets, "load_dataset_builder", load)
        with pytest.raises(kind, match=message):
            prompts("org/set")

    def test_an_older_copy_does_not_stand_in_for_a_commit_that_cannot_be_fetched(
        self, hub: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        builder = type("Cache", (), {"__module__": "datasets.packaged_modules.cache.cache"})
        monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: builder())
        with pytest.raises(TargetUnavailable, match="the hub cannot be reached"):
            prompts("org/set")


def test_the_commit_comes_from_the_hub_clients_own_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def snapshot(repo: str, **asked: Any) -> str:
        assert (repo, asked["repo_type"], asked["revision"]) == ("org/pinned", "dataset", "v1")
        return f"/cache/snapshots/{'d' * 40}"

    monkeypatch.setattr(dataset, "snapshot_download", snapshot)
    assert dataset.pinned("org/pinned", "v1") == "d" * 40
