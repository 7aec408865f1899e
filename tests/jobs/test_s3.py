"""The S3 store against a real server (SeaweedFS, from a wheel)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from jobs.errors import ChecksumMismatch, NotFound, StoreRefused, StoreUnavailable
from jobs.files import file_sha256
from jobs.settings import Settings
from jobs.store import ObjectStore, open_store
from tests.servers import S3_KEY, S3_SECRET, seaweedfs
from tests.settings import settings_of

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweedfs(tmp_path_factory.mktemp("s3"), "drafts") as s3:
        yield s3.endpoint


@pytest.fixture(scope="module")
def store(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    return open_store(s3_settings(endpoint, tmp_path_factory.mktemp("home")))


def s3_settings(endpoint: str, home: Path, bucket: str = "drafts") -> Settings:
    return settings_of(
        home=home, store_url=f"s3://{bucket}/updraft", s3_endpoint_url=endpoint,
        s3_access_key=S3_KEY, s3_secret_key=S3_SECRET,
    )  # fmt: skip


def test_round_trip(store: ObjectStore, tmp_path: Path) -> None:
    source, back = tmp_path / "a", tmp_path / "b"
    source.write_bytes(os.urandom(12 << 20))
    digest = store.put_file("x/a", source)
    store.get_file("x/a", back, digest)
    assert file_sha256(back) == digest
    assert store.exists("x/a")
    assert store.list("x/") == ["x/a"]
    assert sum(len(chunk) for chunk in store.open("x/a")) == 12 << 20
    with pytest.raises(ChecksumMismatch):
        store.get_file("x/a", tmp_path / "c", "0" * 64)
    assert not (tmp_path / "c").exists()
    store.delete("x/a")
    assert not store.exists("x/a")
    with pytest.raises(NotFound):
        store.get_file("x/a", back)
    store.ping()


def test_one_of_many_writers_wins(store: ObjectStore) -> None:
    won: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda i=i: won.append(store.put_bytes("m", b"%d" % i, if_none_match=True))
        )
        for i in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert won.count(True) == 1


def test_a_presigned_url_reads_and_no_more(store: ObjectStore) -> None:
    store.put_bytes("p/file.txt", b"hello")
    url = store.presign("p/file.txt", 60)
    assert url is not None
    answer = httpx.get(url)
    assert answer.content == b"hello"
    assert "file.txt" in answer.headers["content-disposition"]
    assert httpx.get(url.replace("file.txt", "other.txt")).status_code == 403


def test_what_is_away(endpoint: str, tmp_path: Path) -> None:
    settings = s3_settings(endpoint, tmp_path)
    closed = settings.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:1"})
    with pytest.raises(StoreUnavailable):
        open_store(closed).get_bytes("k")


def test_what_stays_refused(endpoint: str, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"x")
    nowhere = open_store(s3_settings(endpoint, tmp_path, bucket="nobucket"))
    with pytest.raises(StoreRefused, match="create it"):
        nowhere.ping()
    settings = s3_settings(endpoint, tmp_path)
    wrong = open_store(settings.model_copy(update={"s3_secret_key": SecretStr("wrong")}))
    asks: list[Callable[[], object]] = [
        lambda: wrong.put_file("k", source),
        lambda: wrong.put_bytes("k", b"x"),
        lambda: wrong.get_file("k", tmp_path / "b"),
        lambda: wrong.get_bytes("k"),
        lambda: wrong.exists("k"),
        lambda: wrong.list(""),
        wrong.ping,
    ]
    for ask in asks:
        with pytest.raises(StoreRefused, match="s3://drafts/updraft/"):
            ask()
