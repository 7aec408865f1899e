"""Pause, cancel in an upload, time limits, and which GPUs a child gets."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs import control, endings, leases, service
from jobs.ids import utcnow
from jobs.models import Job
from jobs.needs import Gpus
from jobs.settings import Settings
from jobs.states import JobStatus, StageStatus
from tests.settings import settings_of
from tests.workers.conftest import MakeRuntime, events_of, job_of, submit
from tests.workers.test_stage import in_thread, stage_of, until
from workers import machine
from workers.cleaning import clean_runs
from workers.environment import child_environment
from workers.execute import command_of, limits_of
from workers.machine import given, gpus_here, kind_of, visible
from workers.runtime import Runtime
from workers.stage import drain


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(home=tmp_path)


def leased(rt: Runtime, stage: str, has: Gpus, **spec: Any) -> leases.Lease:
    """A lease on a stage whose predecessors are done."""
    submit(rt, **spec)
    while True:
        with rt.db.write() as session:
            lease = leases.claim(session, "w", settings=rt.settings, now=utcnow(), has=has)
            assert lease is not None
            if lease.stage == stage:
                return lease
            endings.finish(session, lease, now=utcnow(), summary={})


def test_pause_saves_the_work_and_resume_goes_on(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("waits@train")
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: stage_of(rt, job_id, "train")["checkpoint"] is not None)
    with rt.db.write() as session:
        assert control.pause(session, job_id, now=utcnow()).status == JobStatus.PAUSING
    thread.join(60)
    assert job_of(rt, job_id).status == JobStatus.PAUSED
    train = stage_of(rt, job_id, "train")
    assert (train["status"], train["attempt"]) == (StageStatus.QUEUED, 0)
    with rt.db.write() as session:
        control.resume(session, job_id, now=utcnow())
    drain(rt)
    assert job_of(rt, job_id).status == JobStatus.SUCCEEDED
    assert "starting at step 3" in [e.message for e in events_of(rt, job_id)]


def test_retry_goes_on_from_the_checkpoint_of_a_cancelled_job(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("waits@train")
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: stage_of(rt, job_id, "train")["checkpoint"] is not None)
    with rt.db.write() as session:
        service.request_cancel(session, job_id, now=utcnow())
    thread.join(60)
    with rt.db.write() as session:
        control.retry(session, job_id, settings=rt.settings, now=utcnow())
    drain(rt)
    assert job_of(rt, job_id).status == JobStatus.SUCCEEDED
    messages = [e.message for e in events_of(rt, job_id)]
    assert "starting at step 3" in messages
    assert messages.count("prepare done") == 1


def test_cancel_ends_an_upload(make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    rt = make_runtime()
    job_id = submit(rt)

    def endless(key: str, path: Path, check: Any) -> str:
        with rt.db.write() as session:
            service.request_cancel(session, job_id, now=utcnow())
        while True:
            check()

    monkeypatch.setattr(rt.store, "put_file", endless)
    monkeypatch.setattr("workers.stage._keep_logs", lambda *_: None)
    drain(rt)
    assert job_of(rt, job_id).status == JobStatus.CANCELLED
    assert rt.store.list("stages/") == []


def test_a_stopping_worker_ends_its_upload_first(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = make_runtime()
    job_id = submit(rt)
    put = rt.store.put_file

    def stopping(key: str, path: Path, *check: Any) -> str:
        if check:
            rt.stop.set()
            check[0]()
        return put(key, path)

    monkeypatch.setattr(rt.store, "put_file", stopping)
    assert drain(rt) == 1
    assert stage_of(rt, job_id, "resolve")["status"] == StageStatus.SUCCEEDED


def test_a_stage_has_its_own_time_limit_and_is_not_tried_again(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("silent@resolve", stop_grace_seconds=0.2)
    job_id = submit(rt, limits={"seconds": {"resolve": 0.3}})
    drain(rt)
    error = job_of(rt, job_id).error
    assert error is not None
    assert (error["reason"], error["retryable"]) == ("timeout", False)
    assert "longer than 0.3 s" in error["message"]


def test_a_job_may_allow_less_silence(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("silent@resolve", stop_grace_seconds=0.2, max_attempts=1)
    job_id = submit(rt, limits={"no_progress_seconds": 0.3})
    drain(rt)
    error = job_of(rt, job_id).error
    assert error is not None
    assert "printed nothing for 0.3 s" in error["message"]


def test_the_least_limit_holds_and_earlier_leases_count(make_runtime: MakeRuntime) -> None:
    rt = make_runtime(max_runtime_seconds=100, stage_seconds={"train": 50, "resolve": 200})
    lease = leased(rt, "resolve", Gpus(), limits={"seconds": {"train": 60, "prove": 7}})
    named = {s: limits_of(rt.settings, replace(lease, stage=s)).runtime for s in
             ("resolve", "train", "prove")}  # fmt: skip
    assert named == {"resolve": 100, "train": 50, "prove": 7}
    assert limits_of(rt.settings, replace(lease, spent=30.0)).runtime == 70
    assert limits_of(rt.settings, replace(lease, spent=300.0)).runtime == 0


def test_a_child_sees_the_gpus_it_asked_for(make_runtime: MakeRuntime, tmp_path: Path) -> None:
    rt = make_runtime(stage_command=(sys.executable, "-m", "eagle3.cli"), stop_grace_seconds=60)
    lease = leased(rt, "extract", Gpus("h100", 8), needs="gpux2")
    command = command_of(rt.settings, lease, "extract", tmp_path)
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert {"--nproc-per-node=2", "--shutdown-timeout=60", "--no-python"} <= set(command)
    assert command[-5:] == [sys.executable, "-m", "eagle3.cli", "extract", str(tmp_path)]
    assert command_of(rt.settings, lease, "prove", tmp_path)[1:3] == ["-m", "eagle3.cli"]
    env = child_environment(rt.settings, "extract", given(2, "4,5,6"))
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert [given(2, None), given(0, "0,1"), given(0, None)] == ["0,1", "", ""]


class TestMachine:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("NVIDIA L40S", "l40s"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA RTX A6000", "rtxa6000"),
        ],
    )  # fmt: skip
    def test_the_kind_of_a_name(self, name: str, kind: str) -> None:
        assert kind_of(name) == kind

    def test_what_the_driver_says_and_cuda_may_see(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\nprintf 'NVIDIA H100\\nNVIDIA H100\\nTesla T4\\n'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert gpus_here(settings) == Gpus("h100", 2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
        assert gpus_here(settings) == Gpus("t4", 1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert gpus_here(settings) == Gpus()
        asked = settings.model_copy(update={"worker_has": "gpu:b200x4"})
        assert gpus_here(asked) == Gpus("b200", 4)

    def test_without_the_tool_the_driver_is_read(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(machine, "DRIVER", tmp_path / "gpus")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert gpus_here(settings) == Gpus()
        (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
        text = "Model: \t\t NVIDIA L40S\nIRQ:   \t\t 90\n"
        (tmp_path / "gpus" / "0000:01:00.0" / "information").write_text(text)
        assert gpus_here(settings) == Gpus("l40s", 1)

    def test_what_is_visible(self) -> None:
        names = ["a", "b", "c"]
        assert visible(names, None) == names
        assert visible(names, "1,7,2") == ["b", "c"]
        assert visible(names, "-1") == []
        assert visible(names, "GPU-8f3a,GPU-11") == ["a", "a"]


def test_runs_of_ended_jobs_go_after_a_while(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("bad_input@resolve", keep_runs_days=1)
    old, fresh = submit(rt), submit(rt)
    drain(rt)
    going_on = submit(rt)
    (rt.settings.runs_dir / going_on).mkdir()
    (rt.settings.runs_dir / "notes").mkdir()
    with rt.db.write() as session:
        session.get_one(Job, old).finished_at = utcnow() - timedelta(days=2)
    assert clean_runs(rt) == [rt.settings.runs_dir / old]
    left = {p.name for p in rt.settings.runs_dir.iterdir()}
    assert left == {fresh, going_on, "notes"}
