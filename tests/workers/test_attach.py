"""Attachments through the worker: what is decided, what is run, and what is registered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from jobs import leases
from jobs.attachments import decision_of, get_attachment, outcome
from jobs.drafts import get_draft
from jobs.ids import utcnow
from jobs.models import Alias, Draft, Stage
from jobs.service import ATTACH_STAGES
from jobs.states import JobStatus
from tests.workers.conftest import MakeRuntime, events_of, job_of, submit
from workers.runtime import Runtime
from workers.stage import drain, run_lease

NEW = "moved@resolve"
"""The next job's target has other weights."""


def parent(make_runtime: MakeRuntime) -> str:
    """A champion for the former checkpoint. Returns its id."""
    rt = make_runtime()
    job = job_of(rt, _done(rt))
    assert job.result is not None
    return str(job.result["draft_id"])


def _done(rt: Runtime, **spec: Any) -> str:
    job_id = submit(rt, **spec)
    drain(rt)
    return job_id


def how(rt: Runtime, job_id: str) -> tuple[str, str]:
    """The decision and the outcome."""
    with rt.db.read() as session:
        decision = decision_of(session, job_id)
        attachment, job = get_attachment(session, job_id)
        assert attachment.decided_at is not None
        assert decision is not None
        return decision.mode, outcome(job, decision)


def draft_of(rt: Runtime, job_id: str) -> Draft:
    with rt.db.read() as session:
        return get_draft(session, str((job_of(rt, job_id).result or {})["draft_id"]))


def test_a_draft_that_still_accepts_is_reused(make_runtime: MakeRuntime) -> None:
    former = parent(make_runtime)
    rt = make_runtime(NEW)
    job_id = _done(rt, attach={})
    assert how(rt, job_id) == ("reuse", "attached_by_reuse")
    job = job_of(rt, job_id)
    assert [s.name for s in job.stages] == ["resolve", "prepare", "probe", "register"]
    draft = draft_of(rt, job_id)
    assert draft.id != former
    assert draft.weights_sha256 == "f" * 64
    assert draft.alias == Alias.CHAMPION
    assert draft.attached_at is not None
    assert draft.metrics["reuses"] == former
    assert draft.metrics["tau"] == 2.4
    manifest = json.loads(rt.store.get_bytes(f"{draft.uri}/manifest.json"))
    assert {"draft/model.safetensors", "probe.json", "fingerprint.json", "serving.json"} <= set(
        manifest["files"]
    )
    assert manifest["capture_layers"] == [2, 4, 6]
    assert manifest["weights_sha256"] == "f" * 64
    with rt.db.read() as session:
        assert get_draft(session, former).alias == Alias.CHAMPION, (
            "still that of its own checkpoint"
        )


def test_the_draft_of_these_very_weights_is_not_registered_twice(make_runtime: MakeRuntime) -> None:
    former = parent(make_runtime)
    rt = make_runtime()
    job_id = _done(rt, attach={"promote": False})
    assert how(rt, job_id) == ("reuse", "attached_by_reuse")
    draft = draft_of(rt, job_id)
    assert draft.id == former
    assert draft.attached_at is not None


def test_a_draft_that_lost_some_is_trained_on_with_a_part_of_the_budget(
    make_runtime: MakeRuntime,
) -> None:
    former = parent(make_runtime)
    rt = make_runtime(f"{NEW},halves@probe")
    job_id = submit(rt, attach={"warm_start_budget": 0.25}, overrides={"train": {"epochs": 8}})
    while (lease := _claim(rt)).stage != "train":
        run_lease(rt, lease)
    train = lease.spec.resolved_recipe().train
    assert (train.start_from, train.epochs) == (f"draft:{former}", 2.0)
    run_lease(rt, lease)
    drain(rt)
    assert how(rt, job_id) == ("warm_start", "attached")
    assert [s.name for s in job_of(rt, job_id).stages] == list(ATTACH_STAGES)
    checks = {c["name"] for c in (job_of(rt, job_id).result or {})["gates"]["checks"]}
    assert "incumbent" in checks
    assert draft_of(rt, job_id).attached_at is not None


def test_one_that_lost_all_is_trained_from_scratch(make_runtime: MakeRuntime) -> None:
    parent(make_runtime)
    rt = make_runtime(f"{NEW},loses@probe")
    job_id = _done(rt, attach={})
    assert how(rt, job_id) == ("train", "attached")


def test_what_may_not_be_done_ends_the_job(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    job_id = _done(rt, attach={"allow": ["reuse"]})
    assert how(rt, job_id) == ("none", "incompatible")
    parent(make_runtime)
    rt = make_runtime(f"{NEW},halves@probe")
    job_id = _done(rt, attach={"allow": ["reuse"]})
    assert how(rt, job_id) == ("none", "gates_failed")
    error = job_of(rt, job_id).error
    assert error is not None
    assert "50%" in error["message"]
    assert events_of(rt, job_id)[-1].type == "job.failed"


def test_a_new_draft_that_is_worse_than_the_incumbent_stays_a_candidate(
    make_runtime: MakeRuntime,
) -> None:
    parent(make_runtime)  # measured at 2.5, and still at 2.4 on the new checkpoint
    rt = make_runtime(NEW)
    job_id = _done(rt, attach={"allow": ["train"], "tolerance": 0.0}, gates={"min_tau": 2.0})
    assert how(rt, job_id) == ("train", "attached")
    rt = make_runtime(f"{NEW},slow@benchmark")
    job_id = _done(rt, attach={"allow": ["train"]})
    assert how(rt, job_id) == ("train", "gates_failed")
    draft = draft_of(rt, job_id)
    assert (draft.alias, draft.attached_at) == (Alias.CANDIDATE, None)


def test_a_draft_that_is_not_promoted_is_attached_all_the_same(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    job_id = _done(rt, attach={"promote": False})
    assert how(rt, job_id) == ("train", "attached")
    draft = draft_of(rt, job_id)
    assert draft.alias == Alias.CANDIDATE
    assert draft.attached_at is not None


def test_the_decision_survives_a_worker_that_dies_after_the_probe(
    make_runtime: MakeRuntime,
) -> None:
    parent(make_runtime)
    rt = make_runtime(NEW)
    job_id = submit(rt, attach={})
    for _ in ("resolve", "prepare"):
        run_lease(rt, _claim(rt))
    gone = _claim(rt)
    assert gone.stage == "probe"
    late = _stolen(rt, gone)
    run_lease(rt, gone)  # its lease is another's by now: nothing that it decides counts
    assert job_of(rt, job_id).status == JobStatus.RUNNING
    with rt.db.read() as session:
        assert decision_of(session, job_id) is None
    run_lease(rt, late)
    drain(rt)
    assert how(rt, job_id) == ("reuse", "attached_by_reuse")


def _claim(rt: Runtime) -> leases.Lease:
    with rt.db.write() as session:
        lease = leases.claim(session, rt.owner, settings=rt.settings, now=utcnow())
    assert lease is not None
    return lease


def _stolen(rt: Runtime, lease: leases.Lease) -> leases.Lease:
    """The stage under another lease."""
    with rt.db.write() as session:
        session.execute(update(Stage).where(Stage.id == lease.stage_id).values(lease_token="new"))
    return replace(lease, token="new")


@pytest.mark.parametrize("owner", ["local", "key_other"])
def test_only_ones_own_drafts_are_candidates(make_runtime: MakeRuntime, owner: str) -> None:
    former = parent(make_runtime)
    rt = make_runtime(NEW)
    with rt.db.write() as session:
        session.execute(update(Draft).where(Draft.id == former).values(owner=owner))
    job_id = _done(rt, attach={})
    assert how(rt, job_id)[0] == ("reuse" if owner == "local" else "train")
