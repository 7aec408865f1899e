"""Evaluations through the worker: what is run, what is kept, and that nothing is registered."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from jobs.attachments import decision_of
from jobs.drafts import deprecate, get_draft
from jobs.errors import InvalidSpec
from jobs.evaluations import list_evaluations
from jobs.ids import utcnow
from jobs.models import Draft
from jobs.states import JobStatus
from tests.workers.conftest import MakeRuntime, job_of, submit
from workers.runtime import Runtime
from workers.stage import drain


def made(rt: Runtime, **spec: object) -> str:
    """A registered draft. Returns its id."""
    job_id = submit(rt, **spec)
    drain(rt)
    return str((job_of(rt, job_id).result or {})["draft_id"])


def test_a_draft_alone(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    draft_id = made(rt)
    job_id = submit(rt, evaluate={"draft": "eagle3--demo", "count": 5, "parity": True})
    drain(rt)
    job = job_of(rt, job_id)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert [s.name for s in job.stages] == ["resolve", "prepare", "probe"]
    assert job.result is not None
    assert job.result["draft_id"] == draft_id
    assert (job.result["tau"], job.result["registered_tau"]) == (2.4, 2.5)
    assert job.result["lossless"]
    assert job.result["parity"]["holds"]
    assert "against" not in job.result
    config = json.loads((rt.settings.runs_dir / job_id / "config.json").read_text())
    assert config["probe"]["spot_checks"] == config["probe"]["prompts"] == 5
    with rt.db.read() as session:
        assert session.scalars(select(Draft.id)).all() == [draft_id], "nothing is registered"
        [(row, of)] = list_evaluations(session, session.get_one(Draft, draft_id)).items
        assert (of.id, row.result, row.finished_at) == (job_id, job.result, job.finished_at)


def test_beside_the_champion(make_runtime: MakeRuntime) -> None:
    champion, rt = made(make_runtime()), make_runtime("slow@benchmark,alone")
    candidate = made(rt, gates={"min_tau": 2.0})
    job_id = submit(rt, evaluate={"draft": candidate, "against": "champion"})
    drain(rt)
    result = job_of(rt, job_id).result
    assert result is not None
    assert result["draft_id"] == candidate
    assert result["against"]["draft_id"] == champion
    assert result["against"]["comparison"] == "no_worse"
    assert result["against"]["tau_gain_ci"] == [-0.05, 0.07]
    assert result["gates"]["passed"]


@pytest.mark.parametrize("against", ["champion", "itself"])
def test_against_itself_is_refused(make_runtime: MakeRuntime, against: str) -> None:
    rt = make_runtime()
    draft_id = made(rt)
    named = draft_id if against == "itself" else against
    with pytest.raises(InvalidSpec, match="itself; name another one"):
        submit(rt, evaluate={"draft": draft_id, "against": named})


@pytest.mark.parametrize("lost", ["manifest.json", "draft/model.safetensors"])
def test_a_draft_whose_files_are_gone_is_missed_by_its_id(
    make_runtime: MakeRuntime, lost: str
) -> None:
    rt = make_runtime()
    draft_id = made(rt)
    lose(rt, draft_id, lost)
    job_id = submit(rt, evaluate={"draft": draft_id})
    drain(rt)
    job = job_of(rt, job_id)
    assert job.error is not None
    assert (job.error["reason"], job.error["attempt"]) == ("bad_input", 1)
    assert f"the files of draft {draft_id} are gone" in job.error["message"]


def test_a_candidate_whose_files_are_gone_holds_up_no_attachment(
    make_runtime: MakeRuntime,
) -> None:
    rt = make_runtime()
    lose(rt, made(rt), "draft/model.safetensors")
    job_id = submit(rt, attach={})
    drain(rt)
    job = job_of(rt, job_id)
    assert job.status == JobStatus.SUCCEEDED, job.error
    with rt.db.read() as session:
        decision = decision_of(session, job_id)
    assert decision is not None
    assert (decision.mode, decision.tried) == ("train", ())


def lose(rt: Runtime, draft_id: str, name: str) -> None:
    """Take a file of a draft out of the store."""
    with rt.db.read() as session:
        rt.store.delete(f"{session.get_one(Draft, draft_id).uri}/{name}")


def test_a_deprecated_draft_is_measured_by_its_id_alone(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    draft_id = made(rt, gates={"min_tau": 99})
    with rt.db.write() as session:
        deprecate(session, get_draft(session, draft_id), "old", now=utcnow())
    job_id = submit(rt, evaluate={"draft": draft_id})
    drain(rt)
    assert job_of(rt, job_id).status == JobStatus.SUCCEEDED
    with pytest.raises(InvalidSpec, match="no draft 'eagle3--demo'"):
        submit(rt, evaluate={"draft": "eagle3--demo"})
