"""A worker that is killed in the middle of training, and a job that is cancelled there."""

from __future__ import annotations

import re

import pytest
from mlflow.tracking import MlflowClient

from api.schemas import JobView
from tests.e2e.checks import check_job, gapless
from tests.e2e.up import PATIENCE_S, Inputs, Up
from tests.servers import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
GOING_ON = re.compile(r"going on from the checkpoint of step (\d+)")


def until_training(up: Up, job: JobView) -> None:
    """Until training has kept a checkpoint; its own log tells sooner than the API."""
    wait_until(lambda: up.stage_lines(job, "train", "checkpoint"), PATIENCE_S, "a checkpoint")


def test_a_killed_worker_goes_on_from_its_last_checkpoint(embedded: Up, inputs: Inputs) -> None:
    job = embedded.submit(inputs.spec(epochs=12, model_name="killed"))
    until_training(embedded, job)
    worker = embedded.celery()
    children = worker.children(recursive=True)
    assert any("train" in child.cmdline() for child in children)
    worker.kill()
    wait_until(lambda: not any(c.is_running() for c in children), 30, "no stage outlives it")
    done = embedded.wait(job)

    check_job(done)
    events = embedded.events(done)
    assert gapless(events)
    retry = next(e for e in events if e.type == "stage.retry")
    assert (retry.data["stage"], retry.data["reason"]) == ("train", "worker_lost")
    resumed = [m for e in events if (m := GOING_ON.search(e.message))]
    steps = next(s for s in done.stages if s.name == "train").summary
    assert steps is not None
    assert len(resumed) == 1
    assert 0 < int(resumed[0][1]) < steps["steps"]
    assert {s.name: s.attempt for s in done.stages if s.attempt > 1} == {"train": 2}
    assert done.result is not None
    embedded.mirrored(done.result["draft_id"])
    assert len(embedded.client.drafts(name="killed").data) == 1
    client = MlflowClient(tracking_uri=embedded.mlflow_url, registry_uri=embedded.mlflow_url)
    assert len(client.search_model_versions("name = 'killed'")) == 1
    assert embedded.celery().pid != worker.pid


def test_cancel_while_training(embedded: Up, inputs: Inputs) -> None:
    job = embedded.submit(inputs.spec(epochs=400, model_name="cancelled"))
    until_training(embedded, job)
    assert embedded.named_processes("train")
    assert embedded.client.cancel(job.id).status == "cancelling"
    done = embedded.wait(job)
    assert done.status == "cancelled"
    states = {s.name: s.status for s in done.stages}
    assert [states[n] for n in ("extract", "train", "export")] == [
        "succeeded", "cancelled", "cancelled",
    ]  # fmt: skip
    said = embedded.stage_lines(job, "train", "error")
    assert [line["reason"] for line in said] == ["stopped"]  # it saved its work and left by itself
    assert not embedded.named_processes("train")
    events = embedded.events(done)
    assert gapless(events)
    assert events[-1].type == "job.cancelled"
    assert embedded.client.drafts(name="cancelled").data == []
