"""The whole job in full mode: PostgreSQL, Redis, S3 and an MLflow server, set by environment alone.

Target and prompts lie in a bucket too, so nothing but the servers is shared with the service.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.client import ApiError, Client
from api.schemas import DraftView, JobView
from tests.e2e.checks import (
    check_draft,
    check_job,
    check_mlflow,
    check_pull,
    check_report,
    gapless,
)
from tests.e2e.up import Inputs, Up, running
from tests.servers import S3, S3_KEY, S3_SECRET, mlflow_server, postgres, redis_server, seaweedfs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Full:
    """The service and the servers under it."""

    up: Up
    s3: S3
    mlflow_url: str


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Full]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("pg", "redis", "s3", "mlflow")}
    with ExitStack() as stack:
        database = stack.enter_context(postgres(folders["pg"]))
        broker = stack.enter_context(redis_server(folders["redis"]))
        s3 = stack.enter_context(seaweedfs(folders["s3"], "drafts", "inputs", "mlflow"))
        access = {
            "AWS_ACCESS_KEY_ID": S3_KEY,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_S3_ENDPOINT_URL": s3.endpoint,
        }
        mlflow = stack.enter_context(
            mlflow_server(folders["mlflow"], "s3://mlflow/artifacts", access)
        )
        up = Up(
            tmp_path_factory.mktemp("full"),
            mode="full",
            database_url=database,
            broker_url=broker,
            store_url="s3://drafts/updraft",
            s3_endpoint_url=s3.endpoint,
            s3_access_key=S3_KEY,
            s3_secret_key=S3_SECRET,
            s3_allowed=json.dumps(["s3://inputs"]),
            mlflow_tracking_uri=mlflow,
            api_key_pepper=secrets.token_hex(32),
        )
        stack.enter_context(running(up))
        made = up.command("keys", "create", "e2e", "--json")
        assert made.returncode == 0, made.stderr
        up.use_key(json.loads(made.stdout)["key"])
        yield Full(up, s3, mlflow)


@pytest.fixture(scope="module")
def job(full: Full, inputs: Inputs) -> JobView:
    for path in inputs.target.path.iterdir():
        full.s3.client.upload_file(str(path), "inputs", f"models/tiny/{path.name}")
    full.s3.client.upload_file(str(inputs.prompts), "inputs", "prompts.jsonl")
    spec = inputs.spec(
        target="s3://inputs/models/tiny",
        prompts={"source": "s3://inputs/prompts.jsonl", "heldout": 8},
    )
    return full.up.wait(full.up.submit(spec))


@pytest.fixture(scope="module")
def draft(full: Full, job: JobView) -> DraftView:
    assert job.result is not None
    full.up.mirrored(job.result["draft_id"])
    return full.up.client.draft(job.result["draft_id"])


def test_every_server_is_ready(full: Full) -> None:
    assert set(full.up.client.ready().checks.values()) == {"ok"}


def test_nothing_without_a_key(full: Full) -> None:
    for key in (None, "upd_" + "0" * 46):
        with Client(full.up.url, api_key=key) as stranger, pytest.raises(ApiError) as refused:
            stranger.jobs()
        assert refused.value.status == 401


def test_places_that_nobody_allowed_are_refused_at_once(full: Full, inputs: Inputs) -> None:
    with pytest.raises(ApiError, match="UPDRAFT_TARGET_ROOTS") as refused:
        full.up.submit(inputs.spec())
    assert refused.value.status == 422


def test_the_job_makes_a_proven_draft_that_is_accepted(full: Full, job: JobView) -> None:
    check_job(job)
    assert {s.attempt for s in job.stages} == {1}
    assert gapless(full.up.events(job))


def test_the_draft_is_bound_to_its_target(full: Full, job: JobView, draft: DraftView) -> None:
    check_draft(draft, job)
    assert full.up.client.drafts(alias="champion").data == [draft]


def test_everything_lies_in_the_bucket(full: Full, draft: DraftView) -> None:
    assert draft.uri.startswith("s3://drafts/updraft/")
    prefix = draft.uri.removeprefix("s3://drafts/")
    found = full.s3.client.list_objects_v2(Bucket="drafts", Prefix=prefix)["Contents"]
    names = {entry["Key"].removeprefix(prefix).lstrip("/") for entry in found}
    assert {"manifest.json", "draft/model.safetensors", "certificate.json"} <= names


def test_mlflow_has_the_run_and_the_version(full: Full, job: JobView, draft: DraftView) -> None:
    check_mlflow(full.mlflow_url, draft, job)


def test_pull(full: Full, inputs: Inputs, draft: DraftView, tmp_path: Path) -> None:
    check_pull(full.up, draft, tmp_path / "pulled", inputs)


def test_report_and_certificate(full: Full, job: JobView) -> None:
    check_report(full.up, job)
