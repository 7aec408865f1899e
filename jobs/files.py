"""Files and folders that are whole or not there, and the hashes they are held against."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs.errors import ChecksumMismatch

CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """An object of a store: its key, its size, and when it was last written."""

    key: str
    bytes: int
    modified: datetime


Check = Callable[[], None]
"""Asked again and again by long work; raises to end it."""


def go_on() -> None:
    """The check of whoever waits to the end."""


def disk_is_full(error: BaseException) -> bool:
    """Whether an error says that this machine's disk, or its owner's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and a final newline; equal values give equal bytes."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


def check_file(key: str, path: Path, sha256: str | None) -> None:
    """Raise `ChecksumMismatch` unless the file has the expected hash; anything goes without one."""
    if sha256 is not None and (found := file_sha256(path)) != sha256:
        raise ChecksumMismatch(f"{key}: expected SHA-256 {sha256}, found {found}; fetch it again")


def file_chunks(path: Path) -> Iterator[bytes]:
    """A file, a mebibyte at a time."""
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            yield chunk


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder; of those that go away meanwhile, none."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """A new file in a folder, gone when the block ends unless it was moved."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def arriving(path: Path) -> Iterator[Path]:
    """A temporary file that becomes `path` when the block ends well."""
    with temporary(path.parent) as tmp:
        yield tmp
        tmp.replace(path)


@contextmanager
def arriving_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block ends well."""
    coming = folder.with_name(f"{folder.name}.arriving")
    shutil.rmtree(coming, ignore_errors=True)
    coming.mkdir(parents=True)
    yield coming
    coming.rename(folder)
