"""The directory store: round trips, the first writer wins, checksums are held against the bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.stub import Stubber
from pydantic import SecretStr

from jobs.errors import ChecksumMismatch, Invalid, NotFound, StoreRefused, StoreUnavailable
from jobs.files import file_sha256
from jobs.settings import Settings
from jobs.store import open_store
from jobs.store_directory import DirectoryStore
from jobs.store_s3 import S3Store


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def test_round_trip(store: DirectoryStore, tmp_path: Path) -> None:
    source, back = tmp_path / "a", tmp_path / "deep" / "b"
    source.write_bytes(b"weights" * 1000)
    digest = store.put_file("x/y/a", source)
    assert digest == file_sha256(source)
    store.get_file("x/y/a", back, digest)
    assert back.read_bytes() == source.read_bytes()
    assert b"".join(store.open("x/y/a")) == store.get_bytes("x/y/a") == source.read_bytes()
    assert store.list("x/") == store.list("x/y") == ["x/y/a"]
    assert store.uri("x/y/a").startswith("file:///")
    store.delete("x/y/a")
    assert not store.exists("x/y/a")


def test_the_first_writer_wins(store: DirectoryStore) -> None:
    assert store.put_bytes("m", b"first", if_none_match=True)
    assert not store.put_bytes("m", b"second", if_none_match=True)
    assert store.get_bytes("m") == b"first"
    assert store.put_bytes("m", b"third")
    assert store.get_bytes("m") == b"third"
    assert store.list("") == ["m"]


def test_changed_bytes_are_noticed_and_not_left_behind(
    store: DirectoryStore, tmp_path: Path
) -> None:
    store.put_bytes("k", b"other bytes")
    with pytest.raises(ChecksumMismatch, match="expected SHA-256 0000"):
        store.get_file("k", tmp_path / "out", "0" * 64)
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_and_what_leads_outside(store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        store.get_bytes("nothing")
    with pytest.raises(NotFound):
        store.get_file("nothing", tmp_path / "out")
    with pytest.raises(Invalid):
        store.get_bytes("../outside")


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = DirectoryStore(tmp_path / "file")
    with pytest.raises(StoreUnavailable):
        store.put_bytes("k", b"x")
    with pytest.raises(StoreUnavailable):
        store.ping()


def test_the_url_chooses_the_store(settings: Settings) -> None:
    assert isinstance(open_store(settings), DirectoryStore)
    s3 = open_store(settings.model_copy(update={"store_url": "s3://bucket/pre/fix"}))
    assert isinstance(s3, S3Store)
    assert s3.uri("k") == "s3://bucket/pre/fix/k"
    with pytest.raises(Invalid, match="expected file"):
        open_store(settings.model_copy(update={"store_url": "ftp://x"}))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AccessDenied", StoreRefused),
        ("NoSuchBucket", StoreRefused),
        ("InvalidAccessKeyId", StoreRefused),
        ("SlowDown", StoreUnavailable),
    ],
)
def test_which_answers_of_a_bucket_are_final(
    settings: Settings, tmp_path: Path, code: str, error: type[Exception]
) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"x")
    keys = {"s3_access_key": SecretStr("key"), "s3_secret_key": SecretStr("secret")}
    store = open_store(settings.model_copy(update={"store_url": "s3://bucket/pre", **keys}))
    assert isinstance(store, S3Store)
    with Stubber(store.client) as answers:
        answers.add_client_error("put_object", code)
        with pytest.raises(error, match=f"answered {code}"):
            store.put_file("k", source)
        answers.add_client_error("get_object", code)
        with pytest.raises(error, match=f"answered {code}"):
            store.get_bytes("k")
