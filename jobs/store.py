"""The object store: one protocol, a directory or S3 behind it. Bytes are checked by SHA-256.

Keys are relative (`stages/train/…`), made from ids and hashes by us, never from user text.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from jobs.errors import ChecksumMismatch, Invalid, NotFound, StoreUnavailable
from jobs.settings import Settings

MISSING = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket"})
CHUNK = 1 << 20


class ObjectStore(Protocol):
    """What API and workers need of a store. Every method may raise `StoreUnavailable`."""

    def uri(self, key: str) -> str:
        """The key as a full URI (`file://…` or `s3://…`)."""
        ...

    def put_file(self, key: str, path: Path) -> str:
        """Store a file. Returns its SHA-256."""
        ...

    def put_bytes(self, key: str, data: bytes, *, if_none_match: bool = False) -> bool:
        """Store bytes. With `if_none_match`, False when the key exists already: the first wins."""
        ...

    def get_file(self, key: str, path: Path, sha256: str | None = None) -> None:
        """Fetch into a file, whole or not at all.

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

    def delete(self, key: str) -> None:
        """Remove a key; nothing happens when it is not there."""
        ...

    def presign(self, key: str, seconds: int = 900) -> str | None:
        """A URL that reads the key for a while; None when this store has no such thing."""
        ...

    def ping(self) -> None:
        """Raise `StoreUnavailable` when the store does not answer."""
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


def s3_client(settings: Settings) -> Any:
    """A boto3 client with path addressing and version 4 signatures."""
    access, secret = settings.s3_access_key, settings.s3_secret_key
    return boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint_url,
        region_name=settings.s3_region,
        aws_access_key_id=access.get_secret_value() if access else None,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            retries={"max_attempts": 4, "mode": "standard"},
            connect_timeout=5,
            read_timeout=60,
        ),
    )


class DirectoryStore:
    """Objects as files under a directory. A file appears under its key only when it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def uri(self, key: str) -> str:
        return f"file://{self._path(key)}"

    def put_file(self, key: str, path: Path) -> str:
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

    def get_file(self, key: str, path: Path, sha256: str | None = None) -> None:
        source = self._existing(key)
        with _arriving(path) as tmp:
            shutil.copyfile(source, tmp)
            _check(key, tmp, sha256)

    def get_bytes(self, key: str) -> bytes:
        return self._existing(key).read_bytes()

    def open(self, key: str) -> Iterator[bytes]:
        return _chunks(self._existing(key))

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def list(self, prefix: str) -> list[str]:
        folder = self._path(prefix if prefix.endswith("/") else prefix.rpartition("/")[0] or ".")
        keys = (p.relative_to(self.root).as_posix() for p in folder.rglob("*") if p.is_file())
        return sorted(k for k in keys if k.startswith(prefix) and "/.tmp-" not in f"/{k}")

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

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
            with _temporary(path.parent) as tmp:
                yield tmp
        except FileNotFoundError:
            raise
        except OSError as e:
            raise StoreUnavailable(f"cannot write {key}: {e.strerror}") from e


class S3Store:
    """Objects in one bucket, below a prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""

    def uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{self.prefix}{key}"

    def put_file(self, key: str, path: Path) -> str:
        digest = file_sha256(path)
        with _translated(key):
            self.client.upload_file(
                str(path), self.bucket, self._key(key), ExtraArgs={"Metadata": {"sha256": digest}}
            )
        return digest

    def put_bytes(self, key: str, data: bytes, *, if_none_match: bool = False) -> bool:
        extra = {"IfNoneMatch": "*"} if if_none_match else {}
        with _translated(key):
            try:
                self.client.put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **extra)
            except ClientError as e:
                if _code(e) in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                    return False
                raise
        return True

    def get_file(self, key: str, path: Path, sha256: str | None = None) -> None:
        with _arriving(path) as tmp:
            with _translated(key):
                self.client.download_file(self.bucket, self._key(key), str(tmp))
            _check(key, tmp, sha256)

    def get_bytes(self, key: str) -> bytes:
        return b"".join(self.open(key))

    def open(self, key: str) -> Iterator[bytes]:
        with _translated(key):
            body = self.client.get_object(Bucket=self.bucket, Key=self._key(key))["Body"]
        chunks: Iterator[bytes] = body.iter_chunks(CHUNK)
        return chunks

    def exists(self, key: str) -> bool:
        try:
            with _translated(key):
                self.client.head_object(Bucket=self.bucket, Key=self._key(key))
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2")
        with _translated(prefix):
            found = [
                item["Key"].removeprefix(self.prefix)
                for page in pages.paginate(Bucket=self.bucket, Prefix=self._key(prefix))
                for item in page.get("Contents", [])
            ]
        return sorted(found)

    def delete(self, key: str) -> None:
        with _translated(key):
            self.client.delete_object(Bucket=self.bucket, Key=self._key(key))

    def presign(self, key: str, seconds: int = 900) -> str | None:
        name = key.rpartition("/")[2]
        with _translated(key):
            url: str = self.client.generate_presigned_url(
                "get_object",
                Params={
                    "Bucket": self.bucket,
                    "Key": self._key(key),
                    "ResponseContentDisposition": f'attachment; filename="{name}"',
                },
                ExpiresIn=min(seconds, 900),
            )
        return url

    def ping(self) -> None:
        try:
            with _translated(self.bucket):
                self.client.head_bucket(Bucket=self.bucket)
        except NotFound:
            raise StoreUnavailable(f"bucket {self.bucket} does not exist; create it") from None

    def _key(self, key: str) -> str:
        if ".." in key.split("/") or key.startswith("/"):
            raise Invalid(f"store key {key!r} leaves the store")
        return self.prefix + key


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and a final newline; equal values give equal bytes."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


def _check(key: str, path: Path, sha256: str | None) -> None:
    if sha256 is not None and (found := file_sha256(path)) != sha256:
        raise ChecksumMismatch(f"{key}: expected SHA-256 {sha256}, found {found}; fetch it again")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            yield chunk


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _arriving(path: Path) -> Iterator[Path]:
    """A temporary file that becomes `path` when the block ends well."""
    with _temporary(path.parent) as tmp:
        yield tmp
        tmp.replace(path)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except ClientError as e:
        if _code(e) in MISSING:
            raise NotFound(f"the store has no {key}") from e
        raise StoreUnavailable(f"{key}: the store answered {_code(e)}") from e
    except (BotoCoreError, OSError) as e:
        raise StoreUnavailable(f"{key}: the store does not answer ({type(e).__name__})") from e


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
