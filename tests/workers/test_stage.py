"""A job through the worker, and every way a stage can end."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy.exc import OperationalError

from jobs import leases, service
from jobs.drafts import get_draft
from jobs.ids import utcnow
from jobs.leases import Lease
from jobs.models import Alias, Stage
from jobs.states import JobStatus, StageStatus
from jobs.store_directory import DirectoryStore
from tests.workers.conftest import MakeRuntime, events_of, job_of, submit
from workers import stage as stage_module
from workers.runtime import Runtime
from workers.stage import drain, run_lease


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for another process or thread; fails rather than waits for ever."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_logs_that_cannot_be_kept_do_not_hide_the_end(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("workers.stage.upload_logs", full)
    rt = make_runtime("bad_input@train")
    job_id = submit(rt)
    drain(rt)
    assert (job_of(rt, job_id).error or {})["reason"] == "bad_input"


def test_a_database_that_is_away_costs_no_attempt(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, asked = stage_module._earlier, []

    def away(rt: Runtime, lease: Lease) -> list[Stage]:
        asked.append(lease.stage)
        if asked.count("train") == 1 and lease.stage == "train":
            raise OperationalError("SELECT", {}, Exception("terminating connection"))
        return earlier(rt, lease)

    monkeypatch.setattr(stage_module, "_earlier", away)
    rt = make_runtime()
    job_id = submit(rt)
    until(lambda: bool(drain(rt)) and job_of(rt, job_id).status.terminal)
    assert job_of(rt, job_id).status == JobStatus.SUCCEEDED
    assert asked.count("train") == 2
    assert stage_of(rt, job_id, "train")["attempt"] == 1
    assert not [e for e in events_of(rt, job_id) if e.type == "stage.retry"]


def in_thread(rt: Runtime) -> threading.Thread:
    thread = threading.Thread(target=drain, args=(rt,))
    thread.start()
    return thread


def stage_of(rt: Runtime, job_id: str, name: str) -> dict[str, object]:
    stage = next(s for s in job_of(rt, job_id).stages if s.name == name)
    return {k: getattr(stage, k) for k in ("status", "attempt", "checkpoint", "error", "progress")}


def test_a_job_from_submission_to_champion(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    job_id = submit(rt, gates={"min_tau": 2.0})
    assert drain(rt) == 10
    job = job_of(rt, job_id)
    assert job.status == JobStatus.SUCCEEDED
    assert {s.status for s in job.stages} == {StageStatus.SUCCEEDED}
    assert job.result is not None
    assert job.result["alias"] == "champion"
    assert job.result["gates"]["passed"]
    with rt.db.read() as session:
        draft = get_draft(session, "eagle3--demo@champion")
    assert draft.alias == Alias.CHAMPION
    manifest = json.loads(rt.store.get_bytes(f"{draft.uri}/manifest.json"))
    assert {"draft/model.safetensors", "serving.json", "report.html", "certificate.json"} <= set(
        manifest["files"]
    )
    serving = json.loads(rt.store.get_bytes(f"{draft.uri}/serving.json"))
    assert serving["engines"]["llamacpp"]["version"] == "2026.1"
    assert serving["serve"] == f"updraft serve {job_id} --engine llamacpp"
    assert draft.metrics["engines"] == serving["engines"]
    assert serving["serve"] in rt.store.get_bytes(f"{draft.uri}/README.md").decode()
    for name, entry in manifest["files"].items():
        rt.store.get_file(f"{draft.uri}/{name}", rt.settings.home / "x", entry["sha256"])
    events = events_of(rt, job_id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "job.succeeded"
    points = [p for e in events if e.type == "metrics" for p in e.data["points"]]
    assert [p["step"] for p in points] == [1, 2, 3, 4, 5, 6]
    progress = stage_of(rt, job_id, "train")["progress"]
    assert progress == {
        "done": 6, "total": 6, "unit": "step", "rate": 1.0, "eta_s": 1.0, "message": "",
        "step": 6, "metrics": {"train/loss": 0.5},
    }  # fmt: skip


def test_a_gate_that_is_missed_leaves_a_candidate(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    job_id = submit(rt, gates={"min_speedup": 3.0})
    drain(rt)
    job = job_of(rt, job_id)
    assert job.status == JobStatus.SUCCEEDED
    assert job.result is not None
    assert job.result["alias"] == "candidate"
    assert not job.result["gates"]["passed"]


def test_a_link_that_broke_leaves_a_candidate(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("apart@parity")
    job_id = submit(rt)
    drain(rt)
    result = job_of(rt, job_id).result
    assert result is not None
    assert result["alias"] == "candidate"
    [check] = [c for c in result["gates"]["checks"] if not c["passed"]]
    assert (check["name"], check["measured"]) == ("parity", {"llamacpp": "acceptance"})


def test_a_job_may_do_without_parity(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("apart@parity")
    job_id = submit(rt, gates={"parity": False})
    drain(rt)
    result = job_of(rt, job_id).result
    assert result is not None
    assert result["alias"] == "champion"


def test_a_job_goes_on_from_a_registered_draft(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    first = submit(rt)
    drain(rt)
    with rt.db.read() as session:
        parent = get_draft(session, first)
    second = submit(rt, overrides={"train": {"start_from": f"draft:{first}"}})
    drain(rt)
    job = job_of(rt, second)
    assert job.status == JobStatus.SUCCEEDED
    folder = rt.settings.runs_dir / second / "inputs" / parent.id
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "config.json": "{}", "model.safetensors": "weights",
    }  # fmt: skip
    config = json.loads((rt.settings.runs_dir / second / "config.json").read_text())
    assert config["recipe"]["train"]["start_from"] == str(folder)
    with rt.db.read() as session:
        draft = get_draft(session, second)
    manifest = json.loads(rt.store.get_bytes(f"{draft.uri}/manifest.json"))
    assert manifest["parent_draft"] == parent.id


@pytest.mark.parametrize("file", ["manifest.json", "draft/model.safetensors"])
def test_a_draft_that_is_not_as_registered_is_not_gone_on_from(
    make_runtime: MakeRuntime, file: str
) -> None:
    rt = make_runtime(max_attempts=1)
    first = submit(rt)
    drain(rt)
    with rt.db.read() as session:
        parent = get_draft(session, first)
    stored = rt.store.get_bytes(f"{parent.uri}/{file}")
    rt.store.put_bytes(f"{parent.uri}/{file}", stored.replace(b"weights", b"_eights"))
    second = submit(rt, overrides={"train": {"start_from": f"draft:{first}"}})
    drain(rt)
    error = job_of(rt, second).error
    assert error is not None
    assert "ChecksumMismatch" in error["message"]
    assert not (rt.settings.runs_dir / second / "inputs" / parent.id).exists()


def test_a_draft_that_changes_tokens_is_not_registered(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("lossy@prove")
    job_id = submit(rt)
    drain(rt)
    job = job_of(rt, job_id)
    assert job.status == JobStatus.FAILED
    assert job.error is not None
    assert job.error["reason"] == "quality_gate"
    assert job.result is not None
    assert rt.store.exists(job.result["artifacts"]["certificate.json"])
    with rt.db.read() as session:
        assert service.list_drafts(session).items == []


def test_bad_input_fails_at_once_with_its_message(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    rt = make_runtime("bad_input@resolve")
    job_id = submit(rt)
    assert drain(rt) == 1
    job = job_of(rt, job_id)
    assert job.status == JobStatus.FAILED
    assert job.error is not None
    support_id = job.error.pop("support_id")
    assert job.error == {
        "reason": "bad_input", "message": "no chat template", "hint": "choose a chat model",
        "stage": "resolve", "attempt": 1, "retryable": False,
    }  # fmt: skip
    assert support_id in {record.__dict__.get("support_id") for record in caplog.records}
    assert job.stages[1].status == StageStatus.CANCELLED


def test_an_unavailable_target_is_tried_three_times(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("unavailable@resolve")
    job_id = submit(rt)
    until(lambda: drain(rt) == 0 and job_of(rt, job_id).status == JobStatus.FAILED)
    assert stage_of(rt, job_id, "resolve")["attempt"] == 3
    assert [e.type for e in events_of(rt, job_id)].count("stage.retry") == 2


def test_a_killed_child_goes_on_from_its_checkpoint(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("killed@train")
    job_id = submit(rt)
    until(lambda: drain(rt) >= 0 and job_of(rt, job_id).status == JobStatus.SUCCEEDED)
    assert stage_of(rt, job_id, "train")["attempt"] == 2
    messages = [e.message for e in events_of(rt, job_id)]
    assert "starting at step 0" in messages
    assert "starting at step 3" in messages
    retry = next(e for e in events_of(rt, job_id) if e.type == "stage.retry")
    assert retry.data["reason"] in ("worker_lost", "out_of_memory")


def test_a_stage_that_asks_to_be_started_again_may_while_it_gets_further(
    make_runtime: MakeRuntime,
) -> None:
    rt = make_runtime("advances@train")
    job_id = submit(rt)
    until(lambda: drain(rt) >= 0 and job_of(rt, job_id).status == JobStatus.SUCCEEDED)
    assert stage_of(rt, job_id, "train")["attempt"] == 1
    waits = [e.message for e in events_of(rt, job_id) if "had not told it to" in e.message]
    assert [text.partition("goes on from ")[2] for text in waits] == [
        f"step {n} in 0 s" for n in range(1, 7)
    ]


def test_a_stage_that_asks_again_without_progress_runs_out_of_attempts(
    make_runtime: MakeRuntime,
) -> None:
    rt = make_runtime("restarts@train")
    job_id = submit(rt)
    until(lambda: drain(rt) >= 0 and job_of(rt, job_id).status == JobStatus.FAILED)
    assert stage_of(rt, job_id, "train")["attempt"] == rt.settings.max_attempts
    error = job_of(rt, job_id).error
    assert error is not None
    assert error["reason"] == "worker_lost"
    assert "train stopped to be started again" in error["message"]
    assert [e.type for e in events_of(rt, job_id)].count("stage.retry") == 2


def test_a_stopping_worker_gives_its_stage_back(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("waits@train")
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: stage_of(rt, job_id, "train")["checkpoint"] is not None)
    rt.stop.set()
    thread.join(60)
    train = stage_of(rt, job_id, "train")
    assert (train["status"], train["attempt"]) == (StageStatus.QUEUED, 0)
    assert job_of(rt, job_id).status == JobStatus.QUEUED
    rt.stop.clear()
    drain(rt)
    assert job_of(rt, job_id).status == JobStatus.SUCCEEDED
    assert "starting at step 3" in [e.message for e in events_of(rt, job_id)]


@pytest.mark.slow
def test_another_machine_goes_on_from_the_stored_checkpoint(make_runtime: MakeRuntime) -> None:
    first = make_runtime("waits@train", upload_checkpoints=True)
    job_id = submit(first)
    thread = in_thread(first)
    until(lambda: stage_of(first, job_id, "train")["checkpoint"] is not None)
    first.stop.set()
    thread.join(60)
    second = make_runtime("ok", machine="two", upload_checkpoints=True)
    drain(second)
    assert job_of(second, job_id).status == JobStatus.SUCCEEDED
    assert "starting at step 3" in [e.message for e in events_of(second, job_id)]
    run = second.settings.runs_dir / job_id
    assert (run / "stages" / "extract" / "extract-digest" / "out.txt").is_file()


def test_cancel_stops_the_child(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("waits@train")
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: stage_of(rt, job_id, "train")["checkpoint"] is not None)
    with rt.db.write() as session:
        assert service.request_cancel(session, job_id, now=utcnow()).status == JobStatus.CANCELLING
    thread.join(60)
    job = job_of(rt, job_id)
    assert job.status == JobStatus.CANCELLED
    assert {s.status for s in job.stages} == {StageStatus.SUCCEEDED, StageStatus.CANCELLED}
    assert events_of(rt, job_id)[-1].type == "job.cancelled"


def test_a_child_that_ignores_term_is_killed(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("stubborn@resolve", stop_grace_seconds=0.2)
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: "will not stop" in [e.message for e in events_of(rt, job_id)])
    with rt.db.write() as session:
        service.request_cancel(session, job_id, now=utcnow())
    thread.join(60)
    assert job_of(rt, job_id).status == JobStatus.CANCELLED


def test_a_silent_child_times_out(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("silent@resolve", no_progress_seconds=0.2, max_attempts=1,
                      stop_grace_seconds=0.2)  # fmt: skip
    job_id = submit(rt)
    drain(rt)
    job = job_of(rt, job_id)
    assert job.error is not None
    assert job.error["reason"] == "timeout"


def test_a_zombie_kills_its_child_and_writes_nothing(make_runtime: MakeRuntime) -> None:
    rt = make_runtime("waits@train")
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: stage_of(rt, job_id, "train")["checkpoint"] is not None)
    rt.stop.set()  # so that it does not claim the stage again; the child is TERMed or killed
    with rt.db.write() as session:
        stage = next(s for s in service.get_job(session, job_id).stages if s.name == "train")
        stage.lease_token = "another worker's"
    thread.join(60)
    train = stage_of(rt, job_id, "train")
    assert train["status"] == StageStatus.RUNNING
    assert train["attempt"] == 1


@pytest.mark.parametrize("heartbeat", [0.05, 14.0])
def test_a_zombie_leaves_its_successors_logs_alone(
    make_runtime: MakeRuntime, heartbeat: float
) -> None:
    """Also one that has not noticed yet, as when it was frozen and has just been woken."""
    rt = make_runtime("waits@train", heartbeat_seconds=heartbeat)
    job_id = submit(rt)
    thread = in_thread(rt)
    until(lambda: "checkpoint at step 3" in [e.message for e in events_of(rt, job_id)])
    name = "train.jsonl"
    (rt.settings.runs_dir / job_id / "logs" / name).write_text("the zombie's")
    rt.store.put_bytes(f"jobs/{job_id}/logs/{name}", b"the successor's")
    with rt.db.write() as session:
        stage = next(s for s in service.get_job(session, job_id).stages if s.name == "train")
        stage.lease_token = "another worker's"
    rt.stop.set()
    thread.join(60)
    assert rt.store.get_bytes(f"jobs/{job_id}/logs/{name}") == b"the successor's"


@pytest.mark.slow
def test_the_hub_token_reaches_only_the_stages_that_fetch(make_runtime: MakeRuntime) -> None:
    for stage, seen in (("resolve", True), ("train", False)):
        rt = make_runtime(f"environment@{stage}", machine=stage, hub_token="hf_secret",
                          s3_secret_key="s3-secret")  # fmt: skip
        job_id = submit(rt)
        drain(rt)
        run = rt.settings.runs_dir / job_id
        env = json.loads((run / "environment.json").read_text())
        assert ("HF_TOKEN" in env) is seen
        assert "s3-secret" not in json.dumps(env)
        assert "hf_secret" not in (run / "config.json").read_text()


def test_a_store_that_is_away_costs_no_attempt(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    job_id = submit(rt)
    assert isinstance(rt.store, DirectoryStore)
    (rt.settings.home / "store").parent.mkdir(exist_ok=True)
    (rt.settings.home / "store").write_text("not a directory")
    with rt.db.write() as session:
        lease = leases.claim(session, "one", settings=rt.settings, now=utcnow())
    assert lease is not None
    run_lease(rt, lease)
    resolve = stage_of(rt, job_id, "resolve")
    assert (resolve["status"], resolve["attempt"]) == (StageStatus.QUEUED, 0)
    (rt.settings.home / "store").unlink()
    until(lambda: drain(rt) >= 0 and job_of(rt, job_id).status == JobStatus.SUCCEEDED)
