"""The object store as a bucket. boto3's errors are translated here and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError
from s3transfer.subscribers import BaseSubscriber

from jobs.errors import Invalid, NotFound, StoreRefused, StoreUnavailable, UpdraftError
from jobs.files import CHUNK, Check, Entry, arriving, check_file, disk_is_full, file_sha256, go_on
from jobs.settings import Settings

MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
REFUSED = {
    **dict.fromkeys(
        ("401", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"),
        "check UPDRAFT_S3_ACCESS_KEY and UPDRAFT_S3_SECRET_KEY",
    ),
    **dict.fromkeys(
        ("403", "Forbidden", "AccessDenied", "AllAccessDisabled"),
        "check UPDRAFT_S3_ACCESS_KEY, UPDRAFT_S3_SECRET_KEY and what they may do; keys that may "
        "not list a bucket hear this of an object that does not exist, too",
    ),
    **dict.fromkeys(("NoSuchBucket", "InvalidBucketName"), "check its name, or create it"),
    **dict.fromkeys(
        ("301", "PermanentRedirect", "AuthorizationHeaderMalformed"),
        "check UPDRAFT_S3_REGION and UPDRAFT_S3_ENDPOINT_URL",
    ),
}
"""Answers that stay the same however often one asks, and what to do about each."""
UNASKED = (NoCredentialsError, PartialCredentialsError, ParamValidationError)
"""What boto3 raises before it asks, each time."""
AWAY = (BotoCoreError, Boto3Error, RetriesExceededError, S3DownloadFailedError, OSError)
CHECK_S = 0.2
"""Time between two questions whether a transfer goes on."""


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


class S3Store:
    """Objects in one bucket, below a prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""

    def uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{self.prefix}{key}"

    def put_file(self, key: str, path: Path, check: Check = go_on) -> str:
        check()
        digest = file_sha256(path)
        extra = {"Metadata": {"sha256": digest}}
        ended = _Ended()
        with self._translated(key):
            transfer = self._transfers.upload(
                str(path), self.bucket, self._key(key), extra_args=extra, subscribers=[ended]
            )
            _finish(transfer, ended, check)
        return digest

    def put_bytes(self, key: str, data: bytes, *, if_none_match: bool = False) -> bool:
        extra = {"IfNoneMatch": "*"} if if_none_match else {}
        with self._translated(key):
            try:
                self.client.put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **extra)
            except ClientError as e:
                if _code(e) in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                    return False
                raise
        return True

    def get_file(
        self, key: str, path: Path, sha256: str | None = None, check: Check = go_on
    ) -> None:
        check()
        with arriving(path) as tmp:
            with self._translated(key):
                self._download(key, tmp, check)
            check_file(key, tmp, sha256)

    def get_bytes(self, key: str) -> bytes:
        return b"".join(self.open(key))

    def open(self, key: str) -> Iterator[bytes]:
        with self._translated(key):
            body = self.client.get_object(Bucket=self.bucket, Key=self._key(key))["Body"]
        chunks: Iterator[bytes] = body.iter_chunks(CHUNK)
        return chunks

    def exists(self, key: str) -> bool:
        try:
            with self._translated(key):
                self.client.head_object(Bucket=self.bucket, Key=self._key(key))
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        return sorted(entry.key for entry in self.entries(prefix))

    def entries(self, prefix: str) -> Iterator[Entry]:
        pages = self.client.get_paginator("list_objects_v2")
        with self._translated(prefix):
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._key(prefix)):
                for item in page.get("Contents", []):
                    key = item["Key"].removeprefix(self.prefix)
                    yield Entry(key, item["Size"], item["LastModified"])

    def delete(self, key: str) -> None:
        with self._translated(key):
            self.client.delete_object(Bucket=self.bucket, Key=self._key(key))

    def presign(self, key: str, seconds: int = 900) -> str | None:
        name = key.rpartition("/")[2]
        with self._translated(key):
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
            with self._translated(""):
                self.client.head_bucket(Bucket=self.bucket)
        except NotFound:
            raise StoreRefused(f"bucket {self.bucket} does not exist; create it") from None

    @cached_property
    def _transfers(self) -> Any:
        return create_transfer_manager(self.client, TransferConfig())

    def _download(self, key: str, path: Path, check: Check) -> None:
        ended = _Ended()
        transfer = self._transfers.download(
            self.bucket, self._key(key), str(path), subscribers=[ended]
        )
        _finish(transfer, ended, check)

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except ClientError as e:
            raise self._answered(key, e) from e
        except UNASKED as e:
            raise StoreRefused(f"{self.uri(key)}: {e}") from e
        except AWAY as e:
            if disk_is_full(e):
                raise  # of this machine, not of the store
            if isinstance(e.__context__, ClientError):  # an upload's error hides the answer
                raise self._answered(key, e.__context__) from e
            text = f"{key}: the store does not answer ({type(e).__name__})"
            raise StoreUnavailable(text) from e

    def _answered(self, key: str, error: ClientError) -> UpdraftError:
        code = _code(error)
        if code in MISSING:
            return NotFound(f"the store has no {key}")
        if code in REFUSED:
            return StoreRefused(f"{self.uri(key)}: the store answered {code}; {REFUSED[code]}")
        return StoreUnavailable(f"{key}: the store answered {code}")

    def _key(self, key: str) -> str:
        if ".." in key.split("/") or key.startswith("/"):
            raise Invalid(f"store key {key!r} leaves the store")
        return self.prefix + key


class _Ended(BaseSubscriber):  # type: ignore[misc]
    """Told when a transfer has ended, well or badly."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def on_done(self, future: Any, **_: Any) -> None:
        self.event.set()


def _finish(transfer: Any, ended: _Ended, check: Check) -> None:
    """Wait for a transfer, which boto3's threads make in parts. Asked here and not as bytes move,
    `check` ends one to or from a server that has gone silent, too; its thread gives up at the read
    timeout."""
    try:
        while not ended.event.wait(CHECK_S):
            check()
    except BaseException:
        transfer.cancel()
        ended.event.wait(CHECK_S)
        raise
    transfer.result()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
