"""The hub token of a job's owner reaches the children that fetch, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from jobs import service
from jobs.hub_tokens import set_hub_token
from jobs.ids import utcnow
from jobs.keys import create_key
from jobs.models import ApiKey, Job, JobEvent, Outbox, Stage
from jobs.spec import JobSpec
from jobs.states import JobStatus
from jobs.webhooks_tables import WebhookDelivery
from tests.workers.conftest import MakeRuntime, events_of, job_of
from workers.runtime import Runtime
from workers.stage import drain

PEPPER = SecretStr("p" * 32)
OWN, SHARED = "hf_abcdefgh12345678", "hf_shared000000000"


def key(rt: Runtime) -> str:
    with rt.db.write() as session:
        row, _ = create_key(session, "k", ["jobs:write"], pepper=PEPPER, now=utcnow())
        set_hub_token(session, row, SecretStr(OWN), pepper=PEPPER, now=utcnow())
        return row.id


def ran(rt: Runtime, owner: str) -> str:
    spec = JobSpec.model_validate({"target": "demo", "recipe": "quick"})
    with rt.db.write() as session:
        made = service.submit(session, spec, settings=rt.settings, now=utcnow(), owner=owner)
        job_id = made.job.id
    drain(rt)
    return job_id


def files(folder: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("stage", ["resolve", "prepare", "regenerate", "train"])
def test_children_that_fetch_get_the_owners_token(make_runtime: MakeRuntime, stage: str) -> None:
    rt = make_runtime(f"environment@{stage},alone", hub_token=SHARED, api_key_pepper=PEPPER)
    found, caches = {}, {}
    for owner in (key(rt), "key_without"):
        job_id = ran(rt, owner)
        told = rt.settings.runs_dir / job_id / "environment.json"
        saw = json.loads(told.read_text())
        found[owner] = saw.get("HF_TOKEN")
        caches[owner] = [saw.get(name) for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE")]
        told.unlink()
        said = "".join(e.message + json.dumps(e.data) for e in events_of(rt, job_id))
        kept = files(rt.settings.runs_dir) + files(rt.settings.home / "store") + said
        assert OWN not in kept
    fetches = stage in ("resolve", "prepare")
    assert list(found.values()) == ([OWN, SHARED] if fetches else [None, None])
    own, shared = caches.values()
    assert shared == [None, None]
    if fetches:  # what the one token lets in, the other owner's jobs do not find
        [owner, _] = caches
        assert own == [str(rt.settings.cache / "owners" / owner / n) for n in ("hub", "datasets")]


def test_a_child_that_tells_it_is_not_repeated(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """In no row, no event, no stored log; the stage's own files are the worker's alone."""
    rt = make_runtime("tells@resolve", api_key_pepper=PEPPER)
    job_id = ran(rt, key(rt))
    job = job_of(rt, job_id)
    assert job.error is not None
    assert job.error["message"] == job.error["hint"] == "asked with [redacted]"
    assert job.stages[0].progress is not None
    with rt.db.read() as session:
        rows = [
            str(row)
            for table in (Job, Stage, JobEvent, Outbox, WebhookDelivery, ApiKey)
            for row in session.execute(select(*table.__table__.columns))
        ]
    assert OWN not in "".join(rows) + files(rt.settings.home / "store") + caplog.text


def test_a_token_that_cannot_be_opened_ends_the_job(make_runtime: MakeRuntime) -> None:
    rt = make_runtime(hub_token=SHARED, api_key_pepper=PEPPER)
    owner = key(rt)
    with rt.db.write() as session:
        session.execute(update(ApiKey).values(hub_token="gAAAAA"))
    job = job_of(rt, ran(rt, owner))
    assert job.status == JobStatus.FAILED
    assert job.error is not None
    assert job.error["reason"] == "bad_input"
    assert "hub-token again" in job.error["message"]
