"""Who goes next: needs, fairness between keys, and what one key may take; on both databases."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select

from jobs import quotas, usage
from jobs.db import Database
from jobs.errors import QuotaExceeded
from jobs.models import Output, Usage, Worker
from jobs.needs import Gpus, parse_gpus, queue_of, serves, stage_needs, taken
from jobs.settings import Settings
from tests.jobs.conftest import Clock
from tests.jobs.world import World


@pytest.fixture
def world(each_db: Database, settings: Settings, clock: Clock) -> World:
    return World(each_db, settings, clock)


class TestNeeds:
    @pytest.mark.parametrize(
        ("text", "gpus"),
        [
            ("cpu", Gpus()), ("gpu", Gpus("", 1)), ("gpux2", Gpus("", 2)),
            ("gpu:h100", Gpus("h100", 1)), ("gpu:h100x8", Gpus("h100", 8)),
            ("gpu:rtx4090", Gpus("rtx4090", 1)), ("gpu:mi300xx8", Gpus("mi300x", 8)),
        ],
    )  # fmt: skip
    def test_they_are_read_and_written_alike(self, text: str, gpus: Gpus) -> None:
        assert parse_gpus(text) == gpus
        assert str(gpus) == text

    @pytest.mark.parametrize("text", ["", "tpu", "gpu:", "gpux0", "gpux65", "gpu:H100", "gpu h100"])
    def test_other_words_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="expected any, cpu, gpu"):
            parse_gpus(text)

    def test_a_worker_serves_what_it_has_and_less(self) -> None:
        assert serves(Gpus()) == ["any", "cpu"]
        assert serves(Gpus("h100", 2)) == [
            "gpu:h100x2", "gpu:h100", "gpux2", "gpu", "any", "cpu",
        ]  # fmt: skip

    def test_light_stages_need_no_gpu(self) -> None:
        assert stage_needs("prepare", "gpu:h100") == "cpu"
        assert stage_needs("train", "gpu:h100") == "gpu:h100"
        assert (taken("any", Gpus("h100", 2)), taken("cpu", Gpus("h100", 2))) == (2, 0)
        assert [queue_of(n) for n in ("any", "cpu", "gpu:h100x8")] == [
            "updraft", "updraft", "updraft.gpu.h100x8",
        ]  # fmt: skip


class TestCapabilities:
    def test_a_stage_goes_where_its_needs_are_met(self, world: World) -> None:
        job_id = world.submit(needs="gpu:h100x2")
        for _ in ("resolve", "prepare"):
            world.finish(world.leased())
        for has in ("cpu", "gpu:h100", "gpu:a100x8"):
            assert world.claim(has=has) is None
        lease = world.leased(has="gpu:h100x8")
        assert (lease.job_id, lease.stage, lease.gpus) == (job_id, "regenerate", 2)
        assert world.hints(job_id)[-1] == {"stage": "regenerate", "needs": "gpu:h100x2"}

    def test_what_does_not_say_takes_all_that_is_there(self, world: World) -> None:
        world.submit()
        assert world.until_stage("regenerate", has="gpu:t4x2").gpus == 2

    def test_gpus_go_first_to_who_needs_them(self, world: World) -> None:
        gpu = world.submit(needs="gpu")
        world.finish(world.leased())
        world.finish(world.leased())
        cpu = [world.submit(needs="cpu") for _ in range(2)]
        assert world.leased(has="cpu").job_id == cpu[0]
        assert world.leased(has="gpu:h100").job_id == gpu
        assert world.leased(has="gpu:h100").job_id == cpu[1]


class TestFairness:
    def test_a_key_with_many_jobs_does_not_hold_up_another(self, world: World) -> None:
        for _ in range(5):
            world.submit("many")
        few = world.submit("few")
        assert world.leased().account == "many"
        assert world.leased().job_id == few
        assert world.leased().account == "many"

    def test_one_worker_serves_keys_by_what_they_took_today(self, world: World) -> None:
        for _ in range(3):
            world.submit("a")
        world.submit("b")
        order = []
        for seconds in (10, 30, 15, 1):
            lease = world.leased()
            order.append(lease.account)
            world.clock.forward(seconds)
            world.finish(lease)
        assert order == ["a", "b", "a", "a"]  # a: 10, b: 30, a: 25, a: 26
        assert world.leased().account == "a"

    def test_priority_comes_before_fairness(self, world: World) -> None:
        world.submit("a", priority=1)
        world.submit("a", priority=1)
        world.submit("b")
        assert [world.leased().account for _ in range(3)] == ["a", "a", "b"]


class TestQuotas:
    def test_running_at_once(self, world: World) -> None:
        with world.db.write() as s:
            quotas.set_quota(s, "a", max_running=1)
        world.submit("a")
        world.submit("a")
        b = world.submit("b")
        first = world.leased()
        assert first.account == "a"
        assert world.leased().job_id == b
        assert world.claim() is None
        world.finish(first)
        assert world.leased().account == "a"

    def test_rivals_do_not_exceed_it(self, world: World) -> None:
        world.settings = world.settings.model_copy(update={"max_running_jobs": 2})
        for _ in range(6):
            world.submit()
        won: list[object] = []
        threads = [threading.Thread(target=lambda: won.append(world.claim())) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(won) == 6
        assert sum(lease is not None for lease in won) == 2

    def test_gpu_hours_of_a_day(self, world: World) -> None:
        world.settings = world.settings.model_copy(update={"gpu_hours_per_day": 2.0})
        world.submit(needs="gpux2")
        lease = world.until_stage("regenerate", has="gpu:t4x2")
        world.clock.forward(3600)
        world.finish(lease)
        assert world.claim(has="gpu:t4x2") is None
        world.submit(needs="cpu")
        assert world.leased(has="gpu:t4x2").needs == "cpu"
        world.clock.forward(23 * 3600)  # the next day
        assert world.leased(has="gpu:t4x2").stage == "extract"

    def test_time_is_charged_however_a_stage_ends(self, world: World) -> None:
        job_id = world.submit()
        ends = (world.release, world.fail, world.finish)
        for end in ends:
            lease = world.leased(has="gpu:t4x2")
            world.clock.forward(10)
            end(lease)
            world.clock.forward(60)
        assert world.stage(job_id).leased_seconds == 30
        with world.db.read() as s:
            charged = s.scalars(select(Usage)).all()
        assert [(u.owner, u.seconds, u.gpu_seconds) for u in charged] == [("local", 30.0, 0.0)]

    def test_what_runs_counts_already(self, world: World) -> None:
        world.submit()
        world.until_stage("regenerate", has="gpu:t4x2")
        world.clock.forward(100)
        with world.db.read() as s:
            stands = usage.standings(s, world.clock.now)["local"]
        assert (stands.running, stands.seconds, stands.gpu_seconds) == (1, 100.0, 200.0)

    def test_many_waiting_and_much_stored_is_refused(self, world: World) -> None:
        with world.db.write() as s:
            quotas.set_quota(s, "a", max_active=1, storage_gb=1e-9)
            s.add(
                Output(prefix="p", stage="extract", digest="d", owner="b", bytes=5,
                       created_at=world.clock.now, used_at=world.clock.now)
            )  # fmt: skip
            quotas.set_quota(s, "b", storage_gb=1e-9)
        job_id = world.submit("a")
        with pytest.raises(QuotaExceeded, match="1 are allowed"):
            world.submit("a")
        world.cancel(job_id)
        world.submit("a")
        with pytest.raises(QuotaExceeded, match="stage outputs"):
            world.submit("b")
        with world.db.write() as s:
            quotas.set_quota(s, "b", storage_gb=None)
        world.submit("b")


class TestWaiting:
    def test_what_nobody_can_run_says_so_and_says_when_somebody_can(self, world: World) -> None:
        world.works("one", "cpu")
        job_id = world.submit(needs="gpu:h100")
        world.sweep()
        text = "no worker has gpu:h100; the workers that run have cpu; regenerate will need it"
        assert world.job(job_id).waiting == text
        world.sweep()
        assert world.events(job_id).count("job.waiting") == 1
        world.works("two", "gpu:h100x8")
        world.sweep()
        assert world.job(job_id).waiting is None

    def test_nobody_is_there(self, world: World) -> None:
        job_id = world.submit()
        world.sweep()
        assert world.job(job_id).waiting is None  # a worker takes a moment to start
        world.clock.forward(world.settings.resend_seconds + 1)
        world.sweep()
        assert world.job(job_id).waiting == "no worker is running; start one"

    def test_quota_and_time(self, world: World) -> None:
        world.works("one", "cpu")
        world.settings = world.settings.model_copy(update={"max_running_jobs": 1})
        first, second = world.submit(), world.submit()
        lease = world.leased()
        world.sweep()
        assert world.job(second).waiting == "1 jobs of this key run, as many as may at once"
        world.fail(lease)
        world.sweep()
        assert "is tried again at 2026-01-01 00:00:0" in (world.job(first).waiting or "")
        assert world.job(second).waiting is None
        world.clock.forward(60)
        world.leased()
        assert world.job(first).waiting is None

    def test_a_job_that_has_ended_waits_for_nothing(self, world: World) -> None:
        world.works("one", "cpu")
        job_id = world.submit(needs="gpu:h100")
        world.sweep()
        world.leased()
        assert "will need it" in (world.job(job_id).waiting or "")
        world.pause(job_id)
        world.cancel(job_id)
        assert world.job(job_id).waiting is None

    def test_dead_workers_are_forgotten(self, world: World) -> None:
        world.works("one", "cpu")
        world.clock.forward(2 * 86400)
        world.sweep()
        with world.db.read() as s:
            assert s.scalars(select(Worker)).all() == []
