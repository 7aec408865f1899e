"""Prompt sets from a real S3 server (SeaweedFS, from a wheel), and downloads broken off."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3.data.prompts import read_excluded, read_prompts
from eagle3.run import read_config
from jobs import service
from jobs.errors import FailureReason
from jobs.ids import utcnow
from jobs.states import JobStatus, StageStatus
from tests.servers import S3, S3_KEY, S3_SECRET, seaweedfs, wait_until
from tests.workers.conftest import MakeRuntime, events_of, job_of, submit
from workers.runtime import Runtime
from workers.stage import drain

pytestmark = pytest.mark.e2e


class Line:
    """Stands between a client and a server; `narrow` lets 1 MB/s through, and `silent` nothing."""

    def __init__(self, server: str) -> None:
        self.narrow, self.silent = False, False
        self.passed = 0
        """Bytes on their way to the client."""
        host, port = server.removeprefix("http://").split(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those there are may end."""
        self._listening.close()
        self.narrow = self.silent = False

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            server = socket.create_connection(self._server)
            for ends in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(65536):
                while back and self.silent:
                    time.sleep(0.01)
                if back and self.narrow:
                    time.sleep(len(data) / 1e6)
                sink.sendall(data)
                self.passed += len(data) if back else 0
        except OSError:
            pass  # one end has gone, and so does the other
        finally:
            source.close()
            sink.close()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with seaweedfs(tmp_path_factory.mktemp("s3"), "inputs") as server:
        yield server


@pytest.fixture
def line(s3: S3) -> Iterator[Line]:
    line = Line(s3.endpoint)
    yield line
    line.close()


def at(endpoint: str) -> dict[str, Any]:
    return {
        "s3_endpoint_url": endpoint, "s3_access_key": S3_KEY, "s3_secret_key": S3_SECRET,
        "s3_allowed": ("s3://inputs",),
    }  # fmt: skip


def test_sets_of_a_mixture_and_excluded_ones_come_from_s3(
    s3: S3, make_runtime: MakeRuntime, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"prompt": ["parquet"]}), tmp_path / "p")
    s3.client.upload_file(str(tmp_path / "p"), "inputs", "a/set.parquet")
    for key, text in (
        ("b/set.jsonl", '{"prompt": "lines"}\n'),
        ("c/set.json", '[{"prompt": "list"}]'),
        ("d e/täglich.jsonl", '{"prompt": "left out"}\n'),
    ):
        s3.client.put_object(Bucket="inputs", Key=key, Body=text.encode())
    named = [f"s3://inputs/{key}" for key in ("a/set.parquet", "b/set.jsonl", "c/set.json")]
    rt = make_runtime(**at(s3.endpoint))
    prompts = {
        "mix": [{"source": source} for source in named],
        "exclude": [{"source": "s3://inputs/d e/täglich.jsonl"}],
    }
    job_id = submit(rt, prompts=prompts)
    drain(rt)
    assert job_of(rt, job_id).status == JobStatus.SUCCEEDED
    config = read_config(rt.settings.runs_dir / job_id)
    texts = [p.messages[0]["content"] for p in read_prompts(config)]
    assert texts == ["parquet", "lines", "list"]
    assert [p.messages[0]["content"] for p in read_excluded(config)] == ["left out"]
    assert len(set(config.brought.values())) == 4


def test_a_set_that_is_not_there_is_named_by_its_field(s3: S3, make_runtime: MakeRuntime) -> None:
    rt = make_runtime(**at(s3.endpoint))
    job_id = submit(rt, prompts={"exclude": [{"source": "s3://inputs/none.jsonl"}]})
    drain(rt)
    error = job_of(rt, job_id).error
    assert error is not None
    assert error["reason"] == FailureReason.BAD_INPUT
    assert "prompts.exclude.0.source: s3://inputs/none.jsonl does not exist" in error["message"]


def test_a_bucket_that_refuses_the_keys_fails_the_job_at_once(
    s3: S3, make_runtime: MakeRuntime
) -> None:
    rt = make_runtime(**{**at(s3.endpoint), "s3_secret_key": "wrong"})
    job_id = submit(rt, prompts={"source": "s3://inputs/a.jsonl"})
    drain(rt)
    error = job_of(rt, job_id).error
    assert error is not None
    assert (error["reason"], error["attempt"]) == (FailureReason.BAD_INPUT, 1)
    assert "s3://inputs/a.jsonl: the store answered" in error["message"]


def test_a_store_that_refuses_the_keys_fails_the_job_after_its_attempts(
    s3: S3, make_runtime: MakeRuntime
) -> None:
    rt = make_runtime(**{**at(s3.endpoint), "s3_secret_key": "wrong"}, store_url="s3://inputs/x")
    job_id = submit(rt)
    wait_until(lambda: drain(rt) == 0 and bool(job_of(rt, job_id).error), 60, "the job ends")
    error = job_of(rt, job_id).error
    assert error is not None
    assert (error["reason"], error["attempt"]) == (FailureReason.INTERNAL, 3)
    assert "check UPDRAFT_S3_ACCESS_KEY" in error["message"]
    assert job_of(rt, job_id).status == JobStatus.FAILED


@pytest.mark.parametrize("trouble", ["silent", "narrow"])
@pytest.mark.parametrize("why", ["cancel", "stop", "lost"])
def test_a_download_is_broken_off_within_seconds(
    s3: S3, line: Line, make_runtime: MakeRuntime, why: str, trouble: str
) -> None:
    s3.client.put_object(Bucket="inputs", Key="large.jsonl", Body=os.urandom(24 << 20))
    rt = make_runtime(**at(line.url))
    line.narrow = True
    job_id = submit(rt, prompts={"source": "s3://inputs/large.jsonl"})
    worker = threading.Thread(target=drain, args=(rt,))
    worker.start()
    wait_until(lambda: line.passed > 200_000, 30, "bytes arrive")
    line.silent = trouble == "silent"
    end(rt, job_id, why)
    asked = time.monotonic()
    worker.join(30)
    assert time.monotonic() - asked < 5
    resolve = job_of(rt, job_id).stages[0]
    if why == "cancel":
        assert job_of(rt, job_id).status == JobStatus.CANCELLED
    elif why == "stop":
        assert (resolve.status, resolve.attempt) == (StageStatus.QUEUED, 0)
    else:
        assert resolve.lease_token == "another worker's"
        assert "resolve done" not in [e.message for e in events_of(rt, job_id)]
    if trouble == "narrow":
        time.sleep(1)  # what was under way in the sockets
        passed = line.passed
        time.sleep(1)
        assert line.passed == passed
        arrived = rt.settings.runs_dir / job_id / "inputs" / "prompts"
        assert list(arrived.iterdir()) == []


def end(rt: Runtime, job_id: str, why: str) -> None:
    if why == "stop":
        rt.stop.set()
        return
    with rt.db.write() as session:
        if why == "cancel":
            service.request_cancel(session, job_id, now=utcnow())
        else:
            stage = service.get_job(session, job_id).stages[0]
            stage.lease_token = "another worker's"
