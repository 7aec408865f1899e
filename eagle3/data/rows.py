"""Where rows of prompt sets come from: files, directories and data sets, one row at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3.config import PromptSource
from eagle3.data.dataset import dataset_name, open_dataset
from eagle3.errors import BadInput
from eagle3.run import sha256_file, sha256_json

EXPECTED = (
    '{"messages": [{"role": …, "content": …}]}, {"conversations": […]}, {"turns": ["…"]}, '
    '{"prompt": "…"} or {"input_ids": […], "loss_mask": […]}'
)
TEXT_FORMS = ("messages", "conversations", "turns", "prompt")
FORMS = (*TEXT_FORMS, "input_ids")
"""Columns that make a row a prompt, the first there is."""
EXTRAS = ("split", "tools", "loss_mask", "spans", "labels", "tokenizer")

Rows = Iterator[tuple[str, Any]]
"""Where a row stands, for messages to the user, and its value; an error in place of a value is one
that `prompts.py` lists with the others."""


def read_rows(source: PromptSource, brought: Path | None = None) -> Rows:
    """The rows of a prompt set.

    Args:
        brought: where a worker has put the file of an `s3://` source.

    Raises:
        BadInput: the source does not exist or is not readable as what it seems to be.
        TargetUnavailable: a hub data set is gated or cannot be reached.
    """
    ref = source.ref
    if ref.kind == "demo":
        for file in demo_files():
            mark = {"split": "heldout"} if file.stem == "heldout" else {}
            yield from ((where, {**row, **mark}) for where, row in json_rows(file))
        return
    if ref.kind == "hub" or (path := local_path(source, brought)).is_dir():
        yield from _dataset_rows(source)
        return
    if not path.is_file():
        raise BadInput(
            f"the prompt file {path} does not exist",
            "expected a JSONL, JSON or Parquet file, a directory, a hub data set org/name, or demo",
        )
    with path.open("rb") as f:
        start = f.read(4)
    yield from (_parquet_rows(path, source.column) if start == b"PAR1" else json_rows(path))


def local_path(source: PromptSource, brought: Path | None = None) -> Path:
    """The file or directory of a source that is on this machine."""
    if brought is not None:
        return brought
    if source.ref.kind == "s3":
        raise BadInput(
            f"the prompt set {source.source} is not on this machine",
            "a worker of the service brings it; without the service, download it and name the file",
        )
    return Path(source.ref.location).expanduser()


def identity(source: PromptSource, brought: Path | None = None) -> str | None:
    """What the set holds now: a hash of its files, or the commit of a hub data set. None where
    there is nothing, which `read_rows` says better."""
    if source.ref.kind == "hub":
        return dataset_name(source.ref)
    if source.ref.kind == "demo":
        return sha256_json([sha256_file(file) for file in demo_files()])
    path = local_path(source, brought)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return sha256_json([[str(p.relative_to(path)), sha256_file(p)] for p in files])
    return sha256_file(path) if path.is_file() else None


def demo_files() -> list[Path]:
    folder = Path(str(resources.files("eagle3").joinpath("data", "demo")))
    return sorted(folder.glob("*.jsonl"))


def json_rows(file: Path, expected: str = EXPECTED) -> Rows:
    """Lines of JSON, or the items of a file that is one JSON list; a row is to look as expected."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # Windows puts a mark in front
    except UnicodeDecodeError:
        with file.open("rb") as f:
            packed = f.read(2) == b"\x1f\x8b"
        raise BadInput(
            f"{file} is packed by gzip: unpack it" if packed else f"{file} is not text",
            f"expected JSONL in UTF-8, lines of {expected}",
        ) from None
    if re.match(r"\s*\[\s*\{", text):
        items = _json(str(file), text)
        if isinstance(items, ValueError):
            raise BadInput(str(items), "expected a list of objects, or one object a line")
        yield from ((f"{file}, item {n}", item) for n, item in enumerate(items))
        return
    # Not splitlines: JSON may hold U+2028 and the like as they are.
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{file}, line {n}", _json(f"{file}, line {n}", line)


def _json(where: str, text: str) -> Any:
    """The value, or the error as a value."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        return ValueError(f"{where}: not JSON ({e.msg} at column {e.colno})")
    except ValueError:  # Python's own limit
        return ValueError(f"{where}: not a prompt (a number of more than 4,300 digits)")
    except RecursionError:
        return ValueError(f"{where}: not a prompt (nested too deeply)")


def _parquet_rows(file: Path, column: str | None) -> Rows:
    try:
        table = pq.ParquetFile(file)
        columns = _columns(str(file), table.schema_arrow.names, column)
        n = 0
        for batch in table.iter_batches(batch_size=1024, columns=columns):
            for row in batch.to_pylist():
                yield f"{file}, row {n}", _published(row)
                n += 1
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
        raise BadInput(f"{file} cannot be read as Parquet: {' '.join(str(e).split())}") from None


def _dataset_rows(source: PromptSource) -> Rows:
    ref = source.ref
    if ref.kind == "hub" and Path(ref.location).is_dir() and ref.revision is None:
        raise BadInput(
            f"{ref.location} is a directory here, but names a hub data set",
            f"for the directory write ./{ref.location}; for the hub {ref.location}@main",
        )
    rows = open_dataset(ref)
    name = dataset_name(ref)
    columns = _columns(f"the data set {name}", rows.column_names, source.column)
    for n, row in enumerate(rows.select_columns(columns)):
        yield f"{name}, row {n}", _published(row)


def _published(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table, whose own parts (`train_sft`, `dev`) are no marks of ours."""
    if row.get("split") != "heldout":
        row.pop("split", None)
    return row


def _columns(what: str, there: list[str], column: str | None) -> list[str]:
    """The columns to read.

    Raises:
        BadInput: the wanted one is missing, or none is a prompt.
    """
    listed = ", ".join(there) or "none"
    if column is not None and column not in there:
        raise BadInput(f"{what} has no column {column!r}", f"its columns: {listed}")
    if column is None and not set(FORMS) & set(there):
        raise BadInput(
            f"{what} has none of the columns {', '.join(FORMS)}",
            f"name the one that holds the prompts as prompts.column; its columns: {listed}",
        )
    return [name for name in there if name in (*FORMS, *EXTRAS, column)]
