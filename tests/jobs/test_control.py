"""Pause, resume, retry and priority, on both databases."""

from __future__ import annotations

from datetime import datetime

import pytest
from sqlalchemy.orm import Session

from jobs import leases, outputs
from jobs.db import Database
from jobs.endings import Failure
from jobs.errors import FailureReason, IllegalTransition, InvalidSpec, QuotaExceeded
from jobs.models import Output
from jobs.settings import Settings
from jobs.states import JobStatus, StageStatus
from tests.jobs.conftest import Clock
from tests.jobs.world import World

BAD = Failure(FailureReason.BAD_INPUT, "no template")


@pytest.fixture
def world(each_db: Database, settings: Settings, clock: Clock) -> World:
    return World(each_db, settings, clock)


class TestPause:
    def test_a_queued_job_at_once_and_on_again(self, world: World) -> None:
        job_id = world.submit()
        assert world.pause(job_id).status == JobStatus.PAUSED
        assert world.pause(job_id).status == JobStatus.PAUSED
        assert world.claim() is None
        before = len(world.hints(job_id))
        assert world.resume(job_id).status == JobStatus.QUEUED
        assert len(world.hints(job_id)) == before + 1
        assert world.leased().job_id == job_id
        assert world.events(job_id)[:3] == ["job.queued", "job.paused", "job.queued"]

    def test_a_running_stage_is_given_back_and_its_attempt_too(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        assert world.pause(job_id).status == JobStatus.PAUSING
        assert world.beat(lease) == JobStatus.PAUSING
        before = len(world.hints(job_id))
        world.release(lease)
        assert world.job(job_id).status == JobStatus.PAUSED
        stage = world.stage(job_id)
        assert (stage.status, stage.attempt) == (StageStatus.QUEUED, 0)
        assert len(world.hints(job_id)) == before
        assert world.claim() is None
        world.resume(job_id)
        assert world.leased().attempt == 1

    def test_a_stage_that_ends_before_it_is_stopped_counts(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.pause(job_id)
        world.finish(lease)
        assert world.job(job_id).status == JobStatus.PAUSED
        assert world.claim() is None
        world.resume(job_id)
        assert world.leased().stage == "prepare"

    def test_a_failure_meanwhile_waits_with_the_job(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.pause(job_id)
        assert world.fail(lease)
        world.clock.forward(3600)
        assert world.job(job_id).status == JobStatus.PAUSED
        assert world.claim() is None
        world.resume(job_id)
        assert world.leased().attempt == 2

    def test_resumed_before_its_worker_has_stopped(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.pause(job_id)
        assert world.resume(job_id).status == JobStatus.RUNNING
        world.release(lease)
        assert world.leased().job_id == job_id

    def test_a_worker_that_is_gone_answers_nothing_and_the_job_is_paused(
        self, world: World
    ) -> None:
        job_id = world.submit()
        world.leased()
        world.pause(job_id)
        world.clock.forward(world.settings.lease_seconds + 1)
        world.sweep()
        assert world.job(job_id).status == JobStatus.PAUSED

    def test_a_paused_job_can_be_cancelled_and_an_ended_one_not_paused(self, world: World) -> None:
        job_id = world.submit()
        world.pause(job_id)
        assert world.cancel(job_id).status == JobStatus.CANCELLED
        for call in (world.pause, world.resume):
            with pytest.raises(IllegalTransition, match="cancelled"):
                call(job_id)

    def test_one_that_is_pausing_can_be_cancelled(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.pause(job_id)
        assert world.cancel(job_id).status == JobStatus.CANCELLING
        world.release(lease)
        assert world.job(job_id).status == JobStatus.CANCELLED


class TestRetry:
    def test_it_goes_on_from_the_last_good_stage(self, world: World) -> None:
        job_id = world.submit()
        lease = world.until_stage("extract")
        world.fail(lease, BAD)
        job = world.retry(job_id)
        assert (job.status, job.error, job.finished_at) == (JobStatus.QUEUED, None, None)
        statuses = [stage.status for stage in job.stages]
        assert statuses[2:5] == [StageStatus.SUCCEEDED, StageStatus.QUEUED, StageStatus.PENDING]
        again = world.leased()
        assert (again.stage, again.attempt, again.spent) == ("extract", 1, 0.0)
        while again.stage != "register":
            world.finish(again)
            again = world.leased()
        world.finish(again)
        assert world.job(job_id).status == JobStatus.SUCCEEDED

    def test_outputs_that_are_gone_are_made_again(self, world: World) -> None:
        job_id = world.submit()
        world.fail(world.until_stage("extract"), BAD)
        with world.db.write() as s:
            s.delete(s.get_one(Output, "stages/prepare"))
        world.retry(job_id)
        assert world.leased().stage == "prepare"
        assert world.stage(job_id, "regenerate").status == StageStatus.PENDING

    def test_a_cancelled_job_keeps_its_checkpoint(self, world: World) -> None:
        job_id = world.submit()
        lease = world.until_stage("train")
        with world.db.write() as s:
            leases.report(s, lease, now=world.clock.now, checkpoint={"step": 5, "path": "x"})
        world.cancel(job_id)
        world.release(lease)
        assert world.retry(job_id).cancel_requested_at is None
        again = world.leased()
        assert (again.stage, again.checkpoint) == ("train", {"step": 5, "path": "x"})
        assert world.beat(again) == JobStatus.RUNNING

    def test_only_an_ended_job_and_only_within_the_quota(self, world: World) -> None:
        job_id = world.submit()
        with pytest.raises(IllegalTransition, match="queued"):
            world.retry(job_id)
        world.cancel(job_id)
        world.settings = world.settings.model_copy(update={"max_active_jobs": 1})
        world.submit()
        with pytest.raises(QuotaExceeded):
            world.retry(job_id)


class TestPriority:
    def test_the_higher_goes_first_also_when_it_is_raised_later(self, world: World) -> None:
        first = world.submit()
        second = world.submit(priority=5)
        third = world.submit()
        assert world.leased().job_id == second
        world.prioritise(third, 1)
        assert world.leased().job_id == third
        assert world.leased().job_id == first

    def test_no_higher_than_one_may(self, world: World) -> None:
        world.settings = world.settings.model_copy(update={"max_priority": 3})
        with pytest.raises(InvalidSpec, match="at most") as caught:
            world.submit(priority=4)
        assert caught.value.errors[0]["pointer"] == "priority"
        job_id = world.submit(priority=3)
        with pytest.raises(InvalidSpec, match="at most"):
            world.prioritise(job_id, 4)
        assert world.prioritise(job_id, -1).priority == -1
        world.cancel(job_id)
        with pytest.raises(IllegalTransition):
            world.prioritise(job_id, 0)


class TestOutputs:
    def hold(self, session: Session, now: datetime) -> bool:
        return outputs.hold(session, "p", stage="extract", digest="d", owner="a", size=7, now=now)

    def test_only_what_is_complete_is_found_and_its_own_job_named(self, world: World) -> None:
        job_id, now = world.submit(), world.clock.now
        world.finish(world.leased())
        with world.db.write() as s:
            assert outputs.find(s, "resolve", "d", owner="local", now=now) is None
            outputs.completed(s, "stages/resolve", now)
            mine = outputs.find(s, "resolve", "d", owner="local", now=now)
            theirs = outputs.find(s, "resolve", "d", owner="another", now=now)
            outputs.broken(s, "stages/resolve")
            assert outputs.find(s, "resolve", "d", owner="local", now=now) is None
        assert mine == outputs.Found("stages/resolve", job_id)
        assert theirs == outputs.Found("stages/resolve", None)

    def test_what_is_being_removed_is_neither_used_nor_written(self, world: World) -> None:
        now = world.clock.now
        with world.db.write() as s:
            self.hold(s, now)
            outputs.completed(s, "p", now)
            s.get_one(Output, "p").deleting = True
            s.flush()
            assert outputs.find(s, "extract", "d", owner="a", now=now) is None
            assert not self.hold(s, now)
        with world.db.write() as s:
            s.delete(s.get_one(Output, "p"))
        with world.db.write() as s:
            assert self.hold(s, now)
