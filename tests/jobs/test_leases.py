"""Leases with an injected clock: one winner, no zombie writes, capped attempts, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import delete

from jobs import endings, service
from jobs.db import Database
from jobs.endings import Failure
from jobs.errors import FailureReason, IllegalTransition, LeaseLost
from jobs.leases import Lease
from jobs.models import Outbox
from jobs.settings import Settings
from jobs.states import JobStatus, StageStatus
from jobs.sweeper import sweep
from tests.jobs.conftest import Clock
from tests.jobs.world import World


@pytest.fixture
def world(db: Database, settings: Settings, clock: Clock) -> World:
    return World(db, settings, clock)


class TestClaim:
    def test_many_rivals_one_winner(self, world: World) -> None:
        world.submit()
        won: list[Lease | None] = []
        threads = [
            threading.Thread(target=lambda i=i: won.append(world.claim(f"worker {i}")))
            for i in range(12)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(won) == 12
        assert len([lease for lease in won if lease is not None]) == 1

    def test_the_oldest_job_comes_first(self, world: World) -> None:
        older = world.submit()
        world.clock.forward(1)
        newer = world.submit()
        assert world.leased().job_id == older
        assert world.leased().job_id == newer
        assert world.claim() is None

    def test_a_claim_starts_the_job_and_counts_the_attempt(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased("me")
        assert (lease.stage, lease.attempt) == ("resolve", 1)
        job = world.job(job_id)
        assert (job.status, job.started_at) == (JobStatus.RUNNING, world.clock.now)
        assert world.stage(job_id).lease_owner == "me"


class TestHeartbeat:
    def test_it_renews(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.clock.forward(20)
        assert world.beat(lease) == JobStatus.RUNNING
        expires = world.stage(job_id).lease_expires_at
        assert expires is not None
        assert (expires - world.clock.now).total_seconds() == world.settings.lease_seconds

    def test_a_stranger_is_refused(self, world: World) -> None:
        world.submit()
        stranger = Lease(**{**vars(world.leased()), "token": "made up"})
        with pytest.raises(LeaseLost):
            world.beat(stranger)

    def test_it_brings_the_wish_to_cancel(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        assert world.cancel(job_id).status == JobStatus.CANCELLING
        assert world.beat(lease) == JobStatus.CANCELLING


class TestEnds:
    def test_the_next_stage_is_queued_with_the_finish(self, world: World) -> None:
        job_id = world.submit()
        world.finish(world.leased())
        assert world.stage(job_id).status == StageStatus.SUCCEEDED
        assert world.stage(job_id, "prepare").status == StageStatus.QUEUED
        assert world.leased().stage == "prepare"

    def test_the_last_finish_ends_the_job(self, world: World) -> None:
        job_id = world.submit()
        for name in service.ALL_STAGES:
            lease = world.leased()
            assert lease.stage == name
            world.finish(lease)
        job = world.job(job_id)
        assert (job.status, job.finished_at) == (JobStatus.SUCCEEDED, world.clock.now)
        assert world.events(job_id)[-1] == "job.succeeded"

    def test_release_gives_the_attempt_back(self, world: World) -> None:
        job_id = world.submit()
        with world.db.write() as s:
            endings.release(s, world.leased(), now=world.clock.now, message="stopped")
        stage = world.stage(job_id)
        assert (stage.status, stage.attempt, stage.lease_token) == (StageStatus.QUEUED, 0, None)
        assert world.job(job_id).status == JobStatus.QUEUED
        assert world.leased().attempt == 1

    def test_a_retry_waits_longer_each_time_and_attempts_end(self, world: World) -> None:
        job_id = world.submit()
        waits = []
        for again in (True, True, False):
            lease = world.leased()
            assert world.fail(lease) is again
            assert world.claim() is None
            not_before = world.stage(job_id).not_before
            if again and not_before is not None:
                waits.append((not_before - world.clock.now).total_seconds())
                world.clock.forward(waits[-1])
        assert 4 <= waits[0] <= 6 < 8 <= waits[1] <= 12
        job = world.job(job_id)
        assert job.status == JobStatus.FAILED
        assert job.error is not None
        assert (job.error["reason"], job.error["attempt"]) == ("out_of_memory", 3)
        assert world.stage(job_id, "prepare").status == StageStatus.CANCELLED

    def test_what_the_user_must_fix_is_not_retried(self, world: World) -> None:
        job_id = world.submit()
        assert not world.fail(world.leased(), Failure(FailureReason.BAD_INPUT, "no template"))
        assert world.job(job_id).status == JobStatus.FAILED


class TestSweep:
    def test_an_expired_lease_is_queued_again(self, world: World) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.clock.forward(world.settings.lease_seconds - 1)
        assert sweep(world.db, world.settings, world.clock.now).expired == 0
        world.clock.forward(2)
        assert sweep(world.db, world.settings, world.clock.now).expired == 1
        assert world.stage(job_id).status == StageStatus.QUEUED
        for write in (world.beat, world.finish, world.fail):
            with pytest.raises(LeaseLost):
                write(lease)
        world.clock.forward(60)
        second = world.leased("two")
        assert second.attempt == 2
        with pytest.raises(LeaseLost):
            world.finish(lease)
        world.finish(second)

    def test_attempts_are_capped(self, world: World) -> None:
        job_id = world.submit()
        for _ in range(world.settings.max_attempts):
            world.leased()
            world.clock.forward(world.settings.lease_seconds + 1)
            sweep(world.db, world.settings, world.clock.now)
            world.clock.forward(world.settings.retry_cap_seconds)
        assert world.claim() is None
        job = world.job(job_id)
        assert job.error is not None
        assert job.error["reason"] == "worker_lost"

    def test_a_lost_hint_is_sent_again(self, world: World) -> None:
        world.submit()
        with world.db.write() as s:
            s.execute(delete(Outbox))
        assert sweep(world.db, world.settings, world.clock.forward(5)).resent == 0
        assert sweep(world.db, world.settings, world.clock.forward(10)).resent == 1
        assert sweep(world.db, world.settings, world.clock.forward(1)).resent == 0

    def test_a_stop_nobody_answers_is_done(self, world: World) -> None:
        job_id = world.submit()
        world.leased()
        world.cancel(job_id)
        world.clock.forward(world.settings.lease_seconds + 1)
        sweep(world.db, world.settings, world.clock.now)
        assert world.job(job_id).status == JobStatus.CANCELLED
        assert world.events(job_id)[-1] == "job.cancelled"


class TestCancel:
    def test_a_queued_job_at_once(self, world: World) -> None:
        job_id = world.submit()
        job = world.cancel(job_id)
        assert (job.status, job.finished_at) == (JobStatus.CANCELLED, world.clock.now)
        assert world.claim() is None
        events = world.events(job_id)
        assert world.cancel(job_id).status == JobStatus.CANCELLED
        assert world.events(job_id) == events

    def test_between_two_stages_at_once(self, world: World) -> None:
        job_id = world.submit()
        world.finish(world.leased())
        assert world.cancel(job_id).status == JobStatus.CANCELLED
        assert world.claim() is None

    @pytest.mark.parametrize("end", ["finish", "fail", "release", "cancelled"])
    def test_a_running_stage_ends_cancelled_whatever_it_does(self, world: World, end: str) -> None:
        job_id = world.submit()
        lease = world.leased()
        world.cancel(job_id)
        ends: dict[str, Callable[[], object]] = {
            "finish": lambda: world.finish(lease),
            "fail": lambda: world.fail(lease),
            "release": lambda: self._release(world, lease),
            "cancelled": lambda: self._cancelled(world, lease),
        }
        ends[end]()
        assert world.job(job_id).status == JobStatus.CANCELLED
        assert world.claim() is None

    def test_a_job_that_wins_the_race_succeeds(self, world: World) -> None:
        job_id = world.submit()
        for _ in service.ALL_STAGES[:-1]:
            world.finish(world.leased())
        lease = world.leased()
        world.cancel(job_id)
        world.finish(lease)
        assert world.job(job_id).status == JobStatus.SUCCEEDED
        with pytest.raises(IllegalTransition):
            world.cancel(job_id)

    @staticmethod
    def _release(world: World, lease: Lease) -> None:
        with world.db.write() as s:
            endings.release(s, lease, now=world.clock.now, message="stopped")

    @staticmethod
    def _cancelled(world: World, lease: Lease) -> None:
        with world.db.write() as s:
            endings.cancelled(s, lease, now=world.clock.now)
