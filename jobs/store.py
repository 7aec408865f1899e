"""The object store: one protocol, a directory or S3 behind it. Bytes are checked by SHA-256.

Keys are relative (`stages/train/…`), made from ids and hashes by us, never from user text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlparse

from jobs.errors import Invalid
from jobs.files import Check, Entry, go_on
from jobs.settings import Settings
from jobs.store_directory import DirectoryStore
from jobs.store_s3 import S3Store, s3_client


class ObjectStore(Protocol):
    """What API and workers need of a store. Every method may raise `StoreUnavailable`, and
    `StoreRefused` where its keys or its bucket are wrong."""

    def uri(self, key: str) -> str:
        """The key as a full URI (`file://…` or `s3://…`)."""
        ...

    def put_file(self, key: str, path: Path, check: Check = go_on) -> str:
        """Store a file. Returns its SHA-256. `check` is asked before and, where the bytes go far,
        all the while; what it raises ends it, and nothing is stored."""
        ...

    def put_bytes(self, key: str, data: bytes, *, if_none_match: bool = False) -> bool:
        """Store bytes. With `if_none_match`, False when the key exists already: the first wins."""
        ...

    def get_file(
        self, key: str, path: Path, sha256: str | None = None, check: Check = go_on
    ) -> None:
        """Fetch into a file, whole or not at all. `check` is asked before and, where the bytes come
        from afar, all the while; what it raises ends the fetch.

        Raises:
            NotFound: no such key.
            ChecksumMismatch: the bytes are not the expected ones.
        """
        ...

    def get_bytes(self, key: str) -> bytes:
        """The bytes of a small object; raises `NotFound`."""
        ...

    def open(self, key: str) -> Iterator[bytes]:
        """The object in chunks; raises `NotFound` before the first one."""
        ...

    def exists(self, key: str) -> bool: ...

    def list(self, prefix: str) -> list[str]:
        """Keys that start with `prefix`, sorted."""
        ...

    def entries(self, prefix: str) -> Iterator[Entry]:
        """What lies under keys that start with `prefix`, in no order to count on."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key; nothing happens when it is not there."""
        ...

    def presign(self, key: str, seconds: int = 900) -> str | None:
        """A URL that reads the key for a while; None when this store has no such thing."""
        ...

    def ping(self) -> None:
        """Raise `StoreUnavailable` or `StoreRefused` when the store is of no use."""
        ...


def open_store(settings: Settings) -> ObjectStore:
    """The store that `store_url` names.

    Raises:
        Invalid: a URL that is neither `file:///dir` nor `s3://bucket[/prefix]`.
    """
    url = urlparse(settings.store_url)
    if url.scheme == "file" and url.path.startswith("/"):
        return DirectoryStore(Path(url.path))
    if url.scheme == "s3" and url.netloc:
        return S3Store(s3_client(settings), url.netloc, url.path.strip("/"))
    raise Invalid(f"store_url {settings.store_url!r}: expected file:///dir or s3://bucket/prefix")
