"""Which registered draft a job goes on from, and what is said where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from eagle3.plan import TargetShape
from jobs import service
from jobs.db import Database
from jobs.drafts import add_draft
from jobs.endings import end_cancelled
from jobs.errors import InvalidSpec
from jobs.ids import new_id
from jobs.lineage import FIELD, check_sizes, parent_of
from jobs.models import Draft, Job
from jobs.settings import Settings
from jobs.spec import JobSpec
from tests.jobs.conftest import Clock
from tests.jobs.test_service import make_draft

FACTS = {
    "num_layers": 8, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 1000,
    "parameters": 1000,
}  # fmt: skip


@pytest.fixture
def submit(db: Database, settings: Settings, clock: Clock) -> Any:
    def call(start_from: str | None = None, **values: Any) -> Job:
        spec = JobSpec(
            target="demo", recipe="quick", overrides={"train": {"start_from": start_from}}
        )
        with db.write() as s:
            now = clock.forward(1)
            return service.submit(s, spec, settings=settings, now=now, **values).job

    return call


@pytest.fixture
def register(db: Database, clock: Clock) -> Any:
    """Registers a draft of a job, as champion of the name `m`."""

    def call(job: Job) -> str:
        draft = make_draft(job.id, created_at=clock.now, owner=job.owner)
        draft.id = new_id("dft_", clock.forward(1))
        with db.write() as s:
            add_draft(s, draft, champion=True, now=clock.now)
        return draft.id

    return call


def parent(job: Job) -> str | None:
    return parent_of(JobSpec.model_validate(job.spec))


def refusal(submit: Any, start_from: str, **values: Any) -> str:
    with pytest.raises(InvalidSpec) as e:
        submit(start_from, **values)
    assert [error["pointer"] for error in e.value.errors] == [FIELD]
    return e.value.errors[0]["detail"]


def test_a_name_is_looked_up_once_at_submission(submit: Any, register: Any) -> None:
    made = submit()
    first = register(made)
    for name in ("m", "m@champion", first, made.id):
        assert parent(submit(f"draft:{name}")) == first
    job = submit("draft:m@champion")
    second = register(submit())
    assert parent(job) == first
    assert parent(submit("draft:m@champion")) == second
    assert parent(submit(f"draft:{first}")) == first
    assert parent(submit("/a/draft")) is None
    assert parent(submit()) is None


def test_a_repeat_is_the_same_job_though_the_champion_has_moved(submit: Any, register: Any) -> None:
    first = register(submit())
    job = submit("draft:m", idempotency_key="attach")
    register(submit())
    again = submit("draft:m", idempotency_key="attach")
    assert again.id == job.id
    assert parent(again) == first


def test_what_is_no_draft_says_so(submit: Any, db: Database, clock: Clock) -> None:
    assert "no draft 'm@champion' among those you may use" in refusal(submit, "draft:m@champion")
    job = submit()
    waits = f"job {job.id} is queued and has registered no draft; wait until it has succeeded"
    assert refusal(submit, f"draft:{job.id}") == waits
    with db.write() as s:
        end_cancelled(s, job.id, clock.now)
    ended = f"job {job.id} is cancelled and has registered no draft"
    assert refusal(submit, f"draft:{job.id}") == ended


def test_drafts_and_jobs_of_others_are_none(submit: Any, register: Any) -> None:
    job = submit(owner="key_a")
    draft = register(job)
    running = submit(owner="key_a")
    for name in (draft, job.id, "m", running.id):
        text = refusal(submit, f"draft:{name}", owner="key_b", sees="key_b")
        assert text == f"no draft {name!r} among those you may use; `updraft drafts` lists them"
    assert parent(submit(f"draft:{draft}", owner="key_a", sees="key_a")) == draft
    assert parent(submit(f"draft:{draft}", owner="admin", sees=None)) == draft


@pytest.mark.parametrize(
    "named", ["draft:", "draft:m@newest", "draft:../m", "draft:a/b", "relative/dir", "", "draft:m "]
)
def test_what_names_nothing_is_refused(named: str) -> None:
    with pytest.raises(ValidationError, match="names no draft; expected /abs/dir, draft:ID"):
        JobSpec(target="demo", overrides={"train": {"start_from": named}})


def test_sizes_are_compared_where_they_are_known(submit: Any, register: Any, db: Database) -> None:
    job = submit()
    draft_id = register(job)
    same = TargetShape.from_facts(FACTS)
    with db.write() as s:
        draft = s.get_one(Draft, draft_id)
        assert "resolve finds out" in check_sizes(s, draft, same)[0]
        service.get_job(s, job.id).stages[0].summary = FACTS
    with db.read() as s:
        assert check_sizes(s, draft, same) == []
        assert "resolve finds out" in check_sizes(s, draft, None)[0]
        other = TargetShape.from_facts({**FACTS, "hidden_size": 96})
        with pytest.raises(InvalidSpec, match="hidden size 64 where this target has 96"):
            check_sizes(s, draft, other)
        other = TargetShape.from_facts({**FACTS, "vocab_size": 1001})
        with pytest.raises(InvalidSpec, match="vocabulary 1000 where this target has 1001"):
            check_sizes(s, draft, other)
