"""Submission, its idempotency, listing, drafts and the state tables."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from eagle3.config import PromptsConfig
from jobs import service
from jobs.db import Database
from jobs.drafts import add_draft, get_draft
from jobs.errors import IdempotencyMismatch, InvalidSpec, NotFound, QuotaExceeded
from jobs.ids import new_id
from jobs.models import Alias, Draft, Job, Stage
from jobs.settings import Settings
from jobs.spec import JOB_TEMPLATE, JobSpec, check_allowed, parse_spec
from jobs.states import JOB_TRANSITIONS, STAGE_TRANSITIONS, JobStatus, StageStatus, transition
from tests.jobs.conftest import Clock

QUICK = JobSpec(target="demo", recipe="quick")


@pytest.fixture
def submit(db: Database, settings: Settings, clock: Clock) -> Any:
    def call(spec: JobSpec = QUICK, key: str | None = None, owner: str = "local") -> Any:
        with db.write() as s:
            return service.submit(
                s, spec, settings=settings, now=clock.forward(1), owner=owner, idempotency_key=key
            )

    return call


class TestSubmit:
    def test_it_writes_all_of_it(self, submit: Any, db: Database) -> None:
        job = submit().job
        with db.read() as s:
            found = service.get_job(s, job.id)
            events = service.list_events(s, job.id)
        assert [st.name for st in found.stages] == list(service.ALL_STAGES)
        assert [st.status for st in found.stages[:2]] == [StageStatus.QUEUED, StageStatus.PENDING]
        assert [(e.seq, e.type) for e in events] == [(1, "job.queued")]
        assert found.version == job.version == 1

    def test_a_repeat_under_the_key_is_the_same_job(self, submit: Any) -> None:
        first, again, other = submit(key="k"), submit(key="k"), submit(key="k", owner="another")
        assert (again.job.id, again.replayed) == (first.job.id, True)
        assert other.job.id != first.job.id

    def test_another_body_under_the_key_is_refused(self, submit: Any) -> None:
        submit(key="k")
        with pytest.raises(IdempotencyMismatch, match="another job"):
            submit(JobSpec(target="demo", recipe="standard"), key="k")

    def test_a_key_is_forgotten_in_the_end(self, submit: Any, clock: Clock) -> None:
        first = submit(key="k")
        clock.forward(31 * 86400)
        assert submit(key="k").job.id != first.job.id

    def test_too_many_jobs(self, submit: Any, settings: Settings) -> None:
        for _ in range(settings.max_active_jobs):
            submit()
        with pytest.raises(QuotaExceeded):
            submit()
        submit(owner="another")

    def test_a_refusal_that_is_caught_leaves_nothing(
        self, db: Database, settings: Settings, clock: Clock
    ) -> None:
        none = settings.model_copy(update={"max_active_jobs": 0})
        with db.write() as s:
            with pytest.raises(QuotaExceeded, match=r"^0 jobs are queued"):
                service.submit(s, QUICK, settings=none, now=clock.now, idempotency_key="k")
        with db.read() as s:
            assert service.list_jobs(s).items == []


class TestList:
    def test_pages_and_filters(self, submit: Any, db: Database) -> None:
        ids = [submit(JobSpec(target="demo", labels={"n": str(i)})).job.id for i in range(5)]
        with db.read() as s:
            page = service.list_jobs(s, limit=2)
            assert [j.id for j in page.items] == [ids[4], ids[3]]
            page = service.list_jobs(s, limit=2, after=page.next_after)
            assert [j.id for j in page.items] == [ids[2], ids[1]]
            last = service.list_jobs(s, limit=2, after=page.next_after)
            assert ([j.id for j in last.items], last.next_after) == ([ids[0]], None)
            assert [j.id for j in service.list_jobs(s, labels={"n": "3"}).items] == [ids[3]]
            assert service.list_jobs(s, status=JobStatus.RUNNING).items == []
            assert service.list_jobs(s, owner="another").items == []

    def test_another_owners_job_is_not_found(self, submit: Any, db: Database) -> None:
        job_id = submit().job.id
        with db.read() as s, pytest.raises(NotFound):
            service.get_job(s, job_id, owner="another")


def test_a_read_session_refuses_to_write(db: Database) -> None:
    with db.read() as s:
        s.add(make_draft("job_1"))
        with pytest.raises(AssertionError, match="read session"):
            s.flush()


def make_draft(job_id: str, **values: Any) -> Draft:
    fields: dict[str, Any] = {
        "id": new_id("dft_"), "owner": "local", "name": "m", "target": "org/m",
        "target_resolved": "org/m@abc", "weights_sha256": "w", "tokenizer_sha256": "t",
        "template_sha256": "c", "capture_layers": [2, 4, 6], "metrics": {}, "uri": "drafts/x",
        "manifest_sha256": "s",
    }  # fmt: skip
    return Draft(job_id=job_id, **{**fields, **values})


class TestDrafts:
    def test_a_champion_takes_the_place_of_the_former(
        self, submit: Any, db: Database, clock: Clock
    ) -> None:
        for champion in (True, True, False):
            draft = make_draft(submit().job.id, created_at=clock.now)
            draft.id = new_id("dft_", clock.now)
            with db.write() as s:
                add_draft(s, draft, champion=champion, now=clock.now)
        with db.read() as s:
            drafts = service.list_drafts(s).items
            assert [d.alias for d in drafts] == [Alias.CANDIDATE, Alias.CHAMPION, Alias.PREVIOUS]
            assert get_draft(s, "m") is drafts[1]
            assert get_draft(s, "m@candidate") is drafts[0]
            assert get_draft(s, drafts[2].id) is drafts[2]
            assert service.list_drafts(s, base_model="org/m", revision="abc").items == drafts
            assert service.list_drafts(s, base_model="org/other").items == []
            with pytest.raises(NotFound):
                get_draft(s, "nothing")

    def test_a_job_has_one_draft(self, submit: Any, db: Database, clock: Clock) -> None:
        job_id = submit().job.id
        with db.write() as s:
            first = add_draft(
                s, make_draft(job_id, created_at=clock.now), champion=False, now=clock.now
            )
            second = add_draft(
                s, make_draft(job_id, created_at=clock.now), champion=True, now=clock.now
            )
        assert second is first
        assert first.alias == Alias.CANDIDATE


class TestSpec:
    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({}, "target"),
            ({"target": "not a reference"}, "target"),
            ({"target": "demo", "recipe": "none"}, "recipe"),
            ({"target": "demo", "recipe": "../quick"}, "recipe"),
            ({"target": "demo", "extra": 1}, "extra"),
            ({"target": "demo", "overrides": {"train": {"lr": 1}}}, "overrides.train.lr"),
            ({"target": "demo", "overrides": {"train": {"epochs": -1}}}, "overrides.train.epochs"),
            ({"target": "demo", "overrides": {"seed": 1}}, "overrides"),
            ({"target": "demo", "prompts": {"limit": 1}}, "prompts.limit"),
            ({"target": "demo", "gates": {"min_tau": "high"}}, "gates.min_tau"),
            ({"target": "demo", "gates": {"min_tau": float("inf")}}, "gates.min_tau"),
            ({"target": "demo", "labels": {"a": "x\0y"}}, "labels.a"),
            ({"target": "demo", "labels": {"Not A Label": "x"}}, "labels.Not A Label.[key]"),
        ],
    )
    def test_an_error_names_the_whole_path(self, body: dict[str, Any], pointer: str) -> None:
        with pytest.raises(InvalidSpec) as caught:
            parse_spec(body)
        assert [e["pointer"] for e in caught.value.errors] == [pointer]

    def test_overrides_and_seed_reach_the_run(self, settings: Settings) -> None:
        spec = JobSpec(target="demo", recipe="quick", overrides={"train": {"epochs": 9}}, seed=5)
        recipe = spec.run_config(settings).recipe
        assert (recipe.train.epochs, recipe.seed) == (9, 5)

    @pytest.mark.parametrize(
        ("target", "name"),
        [
            ("demo", "eagle3--demo"),
            ("org/model@main", "eagle3--org--model"),
            ("s3://bucket/a/b", "eagle3--a--b"),
            ("file:///data/models/tiny", "eagle3--models--tiny"),
            ("file:///data/a:b/ti ny@1", "eagle3--a-b--ti-ny-1"),
        ],
    )
    def test_the_registered_name(self, target: str, name: str) -> None:
        assert JobSpec(target=target).registry_name() == name

    def test_the_template_is_a_job(self) -> None:
        import yaml

        assert parse_spec(yaml.safe_load(JOB_TEMPLATE)).recipe == "quick"

    def test_full_mode_reads_only_from_allowed_places(self, settings: Settings) -> None:
        full = settings.model_copy(
            update={
                "mode": "full",
                "target_roots": (settings.home,),
                "s3_allowed": ("s3://bok/ok",),
            }
        )
        inside = JobSpec(
            target=f"file://{settings.home}/m", prompts=PromptsConfig(source="s3://bok/ok/p.jsonl")
        )
        check_allowed(inside, full)
        for source in ("org/prompts@main:train", f"file://{settings.home}/p", f"{settings.home}/p"):
            check_allowed(JobSpec(target="demo", prompts=PromptsConfig(source=source)), full)
        for target, source in (
            ("file:///etc/model", "demo"), ("s3://bok/okay/m", "demo"), ("s3://ccc/m", "demo"),
            ("demo", "s3://ccc/p.jsonl"), ("demo", "/etc/passwd"), ("demo", "file:///etc/passwd"),
            ("demo", "x/../../etc/passwd"), ("demo", "~/p"), ("demo", "p.jsonl"),
        ):  # fmt: skip
            with pytest.raises(InvalidSpec, match="not an allowed place"):
                check_allowed(JobSpec(target=target, prompts=PromptsConfig(source=source)), full)
        for draft, allowed in ((f"{settings.home}/draft", True), ("/etc/draft", False)):
            job = JobSpec(target="demo", overrides={"train": {"start_from": draft}})
            if allowed:
                check_allowed(job, full)
            else:
                with pytest.raises(InvalidSpec, match=r"train\.start_from|not an allowed place"):
                    check_allowed(job, full)


class TestStates:
    def test_every_status_has_its_row_and_the_ends_are_ends(self) -> None:
        assert set(JOB_TRANSITIONS) == set(JobStatus)
        assert set(STAGE_TRANSITIONS) == set(StageStatus)
        assert {s for s in JobStatus if s.terminal} == {
            JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED,
        }  # fmt: skip

    @pytest.mark.parametrize("start", list(JobStatus))
    @pytest.mark.parametrize("to", list(JobStatus))
    def test_only_what_the_table_allows(
        self, submit: Any, db: Database, start: JobStatus, to: JobStatus
    ) -> None:
        job_id = submit().job.id
        with db.write() as s:
            s.get_one(Job, job_id).status = start
        with db.write() as s:
            moved = transition(s, Job, to, Job.id == job_id)
        assert moved == (to in JOB_TRANSITIONS[start])

    def test_the_database_refuses_a_running_stage_without_a_lease(
        self, submit: Any, db: Database
    ) -> None:
        job_id = submit().job.id
        with pytest.raises(IntegrityError), db.write() as s:
            transition(s, Stage, StageStatus.RUNNING, Stage.job_id == job_id)
