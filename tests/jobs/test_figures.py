"""The figures are what happened: read from the database alone, and never less than before."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from sqlalchemy import update

from jobs import tally
from jobs.db import Database
from jobs.figures import Figures
from jobs.models import Outbox, Output
from jobs.settings import Settings
from tests.jobs.conftest import Clock
from tests.jobs.world import World


@pytest.fixture
def world(each_db: Database, settings: Settings, clock: Clock) -> World:
    return World(each_db, settings, clock)


def figures(world: World) -> dict[str, float]:
    """Samples by name and label values, `name{a,b}`, labels in the order of their names."""
    with world.db.read() as s:
        text = Figures(s, world.settings, world.clock.now).text().decode()
    return {
        sample.name + ("{" + ",".join(sample.labels.values()) + "}" if sample.labels else ""): (
            sample.value
        )
        for family in parse(text)
        for sample in family.samples
    }


def test_an_empty_service(world: World) -> None:
    found = figures(world)
    assert found["updraft_jobs{queued}"] == 0
    assert found["updraft_outbox_lag_seconds{hint}"] == 0
    assert found["updraft_gpu_seconds_total"] == 0
    assert "updraft_sweep_age_seconds" not in found  # no relay has ever swept


def test_a_queue_grows_old_and_is_served(world: World) -> None:
    world.submit()
    world.clock.forward(40)
    found = figures(world)
    assert (found["updraft_jobs{queued}"], found["updraft_queue_stages{cpu}"]) == (1, 1)
    assert found["updraft_queue_age_seconds{cpu}"] == pytest.approx(40)
    assert found["updraft_outbox_lag_seconds{hint}"] == pytest.approx(40)
    world.leased()
    found = figures(world)
    assert "updraft_queue_age_seconds{cpu}" not in found
    assert found["updraft_stages_running{resolve}"] == 1


def test_attempts_and_durations(world: World) -> None:
    world.submit()
    lease = world.leased()
    world.clock.forward(7)
    world.finish(lease)
    lease = world.leased()
    world.fail(lease)
    world.clock.forward(400)
    world.release(world.leased())
    found = figures(world)
    assert found["updraft_stage_attempts_total{succeeded,,resolve}"] == 1
    assert found["updraft_stage_attempts_total{retried,out_of_memory,prepare}"] == 1
    assert found["updraft_stage_attempts_total{released,,prepare}"] == 1
    assert found["updraft_stage_duration_seconds_bucket{5.0,resolve}"] == 0
    assert found["updraft_stage_duration_seconds_bucket{15.0,resolve}"] == 1
    assert found["updraft_stage_duration_seconds_bucket{+Inf,resolve}"] == 1
    assert found["updraft_stage_duration_seconds_sum{resolve}"] == pytest.approx(7)
    assert "updraft_stage_duration_seconds_sum{prepare}" not in found  # it has not succeeded


def test_a_lease_that_runs_out(world: World) -> None:
    world.submit()
    world.leased()
    world.clock.forward(world.settings.lease_seconds + 1)
    assert figures(world)["updraft_leases_overdue"] == 1
    world.sweep()
    found = figures(world)
    assert found["updraft_leases_overdue"] == 0
    assert found["updraft_lease_expiries_total{resolve}"] == 1
    assert found["updraft_stage_attempts_total{retried,worker_lost,resolve}"] == 1
    world.clock.forward(9)
    assert figures(world)["updraft_sweep_age_seconds"] == pytest.approx(9)


def test_gpu_time_only_rises(world: World) -> None:
    world.submit(needs="gpux2")
    lease = world.until_stage("regenerate", has="gpu:h100x2")
    assert lease.gpus == 2
    world.clock.forward(30)
    during = figures(world)["updraft_gpu_seconds_total"]
    assert during == pytest.approx(60)
    world.finish(lease)
    found = figures(world)
    assert found["updraft_gpu_seconds_total"] == pytest.approx(during)
    assert found["updraft_worker_seconds_total"] >= 30


def test_what_cannot_be_sent_is_failing_rather_than_late(world: World) -> None:
    world.submit()
    later = world.clock.now.replace(year=2027)
    with world.db.write() as s:
        s.execute(update(Outbox).values(last_error="away", available_at=later))
    found = figures(world)
    assert found["updraft_outbox_failing{hint}"] == 1
    assert found["updraft_outbox_pending{hint}"] == 0


def test_workers_and_outputs(world: World) -> None:
    world.works("one", "gpu:h100x8")
    world.works("two", "cpu")
    with world.db.write() as s:
        held = {"stage": "train", "digest": "d", "owner": "local", "deleting": False}
        times = {"created_at": world.clock.now, "used_at": world.clock.now}
        s.add(Output(prefix="a", bytes=5, complete=True, **held, **times))
        s.add(Output(prefix="b", bytes=7, complete=False, **held, **times))
    found = figures(world)
    assert (found["updraft_workers{gpu:h100x8}"], found["updraft_workers{cpu}"]) == (1, 1)
    assert found["updraft_outputs_bytes"] == 5
    world.clock.forward(world.settings.lease_seconds + 1)
    assert "updraft_workers{cpu}" not in figures(world)


@pytest.mark.parametrize(("seconds", "le"), [(0, 1), (1, 1), (1.1, 5), (1e9, tally.LONGER)])
def test_bounds(seconds: float, le: int) -> None:
    assert tally.bound(seconds) == le
