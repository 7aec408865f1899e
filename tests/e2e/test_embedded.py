"""The whole job in embedded mode: SQLite, a directory, a broker without a server, MLflow beside."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from api.client import ApiError
from api.schemas import DraftView, EventView, JobView
from eagle3.engines.environments import Environment
from tests.e2e.checks import (
    check_bundle,
    check_draft,
    check_job,
    check_mlflow,
    check_pull,
    check_report,
    check_served,
    check_served_in_text,
    gapless,
)
from tests.e2e.up import Inputs, Up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
KEY = "attach-tiny-1"


@dataclass
class Done:
    """A job that was followed to its end by its event stream, cut once on the way."""

    job: JobView
    streamed: list[EventView] = field(default_factory=list)
    losses_before_the_end: int = 0
    """Values of train/loss that MLflow had when the last stage began."""


@pytest.fixture(scope="module")
def done(embedded: Up, inputs: Inputs) -> Done:
    found = Done(embedded.submit(inputs.spec(labels={"suite": "e2e"}), KEY))
    for event in embedded.client.stream(found.job.id):
        found.streamed.append(event)
        if len(found.streamed) == 4:
            break  # as a connection that is cut does
    for event in embedded.client.stream(found.job.id, after=found.streamed[-1].seq):
        found.streamed.append(event)
        if event.type == "stage.running" and event.data["stage"] == "register":
            found.losses_before_the_end = _losses(embedded, found.job)
    found.job = embedded.client.job(found.job.id)
    return found


@pytest.fixture(scope="module")
def draft(embedded: Up, done: Done) -> DraftView:
    """The draft, once MLflow has it too."""
    assert done.job.result is not None
    draft_id = done.job.result["draft_id"]
    embedded.mirrored(draft_id)
    return embedded.client.draft(draft_id)


def test_every_part_is_ready(embedded: Up) -> None:
    assert set(embedded.client.ready().checks.values()) == {"ok"}


def test_the_job_makes_a_proven_draft_that_is_accepted(done: Done) -> None:
    check_job(done.job)
    assert {s.attempt for s in done.job.stages} == {1}


def test_events_have_no_gap_and_a_cut_stream_resumes(embedded: Up, done: Done) -> None:
    events = embedded.events(done.job)
    assert gapless(events)
    assert [e.seq for e in done.streamed] == [e.seq for e in events]
    assert (events[0].type, events[-1].type) == ("job.queued", "job.succeeded")


def test_the_draft_is_bound_to_its_target(embedded: Up, done: Done, draft: DraftView) -> None:
    check_draft(draft, done.job)
    assert embedded.client.drafts(alias="champion", name=draft.name).data == [draft]


def test_mlflow_has_the_run_and_the_version(embedded: Up, done: Done, draft: DraftView) -> None:
    run = check_mlflow(embedded.mlflow_url, draft, done.job)
    assert run.data.tags["label.suite"] == "e2e"
    assert done.losses_before_the_end > 1


def test_pull(embedded: Up, inputs: Inputs, done: Done, draft: DraftView, tmp_path: Path) -> None:
    check_pull(embedded, draft, tmp_path / "pulled", inputs)
    check_bundle(tmp_path / "pulled", done.job)


def test_it_is_served_and_answers_its_curl_line(
    embedded: Up, inputs: Inputs, draft: DraftView
) -> None:
    check_served(embedded, draft, inputs.target)


@pytest.mark.vllm
def test_vllm_serves_it_too(
    embedded: Up, inputs: Inputs, draft: DraftView, vllm_environment: Environment
) -> None:
    engines = Path(embedded.env["UPDRAFT_ENGINES"])
    engines.mkdir()
    (engines / "vllm").symlink_to(vllm_environment.root)
    check_served_in_text(embedded, draft, inputs.target)


def test_report_and_certificate(embedded: Up, done: Done) -> None:
    check_report(embedded, done.job)
    shown = embedded.command("show", done.job.id, "--report")
    assert (shown.returncode, "token for token" in shown.stdout) == (0, True), shown.stderr


def test_a_job_goes_on_from_the_registered_draft(
    embedded: Up, inputs: Inputs, done: Done, draft: DraftView
) -> None:
    spec = inputs.spec(epochs=0.1, model_name="warm")
    named = {"start_from": f"draft:{draft.name}@champion", "learning_rate": 1e-6}
    spec["overrides"]["train"] |= named
    warm = embedded.wait(embedded.submit(spec))
    check_job(warm)  # one step of next to nothing: what it has learnt is its parent's
    steps, before = (
        next(s.summary or {} for s in job.stages if s.name == "train") for job in (warm, done.job)
    )
    assert steps["steps"] == 1
    assert steps["acceptance_length"] == pytest.approx(before["acceptance_length"], abs=0.5)
    said = [line["message"] for line in embedded.stage_lines(warm, "train", "log")]
    assert sum(draft.id in text and "starting from" in text for text in said) == 1
    manifest = json.loads(embedded.client.artifact(warm.id, "manifest.json"))
    assert manifest["parent_draft"] == draft.id


def test_the_same_key_gives_the_same_job(embedded: Up, inputs: Inputs, done: Done) -> None:
    spec = inputs.spec(labels={"suite": "e2e"})
    again, replayed = embedded.client.submit(spec, idempotency_key=KEY)
    assert (again.id, replayed) == (done.job.id, True)
    with pytest.raises(ApiError, match="key") as refused:
        embedded.client.submit(inputs.spec(seed=7), idempotency_key=KEY)
    assert refused.value.status == 422


def _losses(up: Up, job: JobView) -> int:
    client = MlflowClient(tracking_uri=up.mlflow_url, registry_uri=up.mlflow_url)
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.job_id = '{job.id}'")
    return sum(len(client.get_metric_history(r.info.run_id, "train/loss")) for r in runs)
