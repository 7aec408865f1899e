"""The object store as a directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from jobs.errors import Invalid, NotFound, StoreUnavailable
from jobs.files import (
    Check,
    Entry,
    arriving,
    check_file,
    file_chunks,
    file_sha256,
    go_on,
    temporary,
)


class DirectoryStore:
    """Objects as files under a directory. A file appears under its key only when it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def uri(self, key: str) -> str:
        return f"file://{self._path(key)}"

    def put_file(self, key: str, path: Path, check: Check = go_on) -> str:
        check()
        with self._whole(key) as tmp:
            shutil.copyfile(path, tmp)
            digest = file_sha256(tmp)
            tmp.replace(self._path(key))
        return digest

    def put_bytes(self, key: str, data: bytes, *, if_none_match: bool = False) -> bool:
        with self._whole(key) as tmp:
            tmp.write_bytes(data)
            if not if_none_match:
                tmp.replace(self._path(key))
                return True
            try:
                os.link(tmp, self._path(key))  # unlike rename, fails when the name exists
            except FileExistsError:
                return False
        return True

    def get_file(
        self, key: str, path: Path, sha256: str | None = None, check: Check = go_on
    ) -> None:
        check()
        source = self._existing(key)
        with arriving(path) as tmp:
            shutil.copyfile(source, tmp)
            check_file(key, tmp, sha256)

    def get_bytes(self, key: str) -> bytes:
        return self._existing(key).read_bytes()

    def open(self, key: str) -> Iterator[bytes]:
        return file_chunks(self._existing(key))

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def list(self, prefix: str) -> list[str]:
        return sorted(entry.key for entry in self.entries(prefix))

    def entries(self, prefix: str) -> Iterator[Entry]:
        folder = self._path(prefix if prefix.endswith("/") else prefix.rpartition("/")[0] or ".")
        for path in folder.rglob("*"):
            key = path.relative_to(self.root.resolve()).as_posix()
            if key.startswith(prefix) and "/.tmp-" not in f"/{key}" and path.is_file():
                found = path.stat()
                yield Entry(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def delete(self, key: str) -> None:
        """Folders that become empty go along."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.root.resolve() or not folder.is_dir() or any(folder.iterdir()):
                return
            try:
                folder.rmdir()
            except OSError:  # something came meanwhile
                return

    def presign(self, key: str, seconds: int = 900) -> str | None:
        return None

    def ping(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreUnavailable(f"store directory {self.root}: {e.strerror}") from e
        if not os.access(self.root, os.W_OK):
            raise StoreUnavailable(f"store directory {self.root} is not writable")

    def _path(self, key: str) -> Path:
        path = (self.root / key).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise Invalid(f"store key {key!r} leaves the store")
        return path

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise NotFound(f"the store has no {key}")
        return path

    @contextmanager
    def _whole(self, key: str) -> Iterator[Path]:
        path = self._path(key)
        try:
            with temporary(path.parent) as tmp:
                yield tmp
        except FileNotFoundError:
            raise
        except OSError as e:
            raise StoreUnavailable(f"cannot write {key}: {e.strerror}") from e
