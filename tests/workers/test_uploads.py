"""Checkpoints in the store, and what a child may print."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from jobs import leases
from jobs.files import go_on
from jobs.ids import utcnow
from jobs.models import Stage
from jobs.store_directory import DirectoryStore
from tests.workers.conftest import MakeRuntime, job_of, submit
from workers.keeper import Keeper
from workers.progress import Reporter
from workers.runtime import Runtime
from workers.supervisor import _parse
from workers.uploads import CheckpointUploader, download_checkpoint


def _lease(rt: Runtime) -> leases.Lease:
    submit(rt)
    with rt.db.write() as session:
        lease = leases.claim(session, "one", settings=rt.settings, now=utcnow())
    assert lease is not None
    return lease


def test_a_checkpoint_is_dropped_only_when_the_database_names_the_next(
    make_runtime: MakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = make_runtime()
    lease = _lease(rt)
    run = tmp_path / "run"
    reporter = Reporter(rt, lease, Keeper(rt, lease))
    told = threading.Semaphore(0)

    def ready(checkpoint: dict[str, Any]) -> None:
        reporter.checkpoints.put(checkpoint)
        told.release()

    uploader = CheckpointUploader(rt.store, run, lease, ready, lambda m: pytest.fail(m))
    reporter.recorded = uploader.recorded

    def checkpoint(step: int) -> None:
        folder = run / f"work/checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
        uploader.announce({"step": step, "path": f"work/checkpoint-{step}"})
        assert told.acquire(timeout=30)

    def stored() -> set[str]:
        return {key.split("/")[5] for key in rt.store.list("jobs/")}

    checkpoint(1)
    reporter.flush()
    away = OperationalError("", {}, Exception())
    with monkeypatch.context() as patch:
        patch.setattr(leases, "report", lambda *_, **__: (_ for _ in ()).throw(away))
        checkpoint(2)
        reporter.flush()
        assert stored() == {"1", "2"}
    checkpoint(3)
    reporter.flush()
    assert stored() == {"3"}
    uploader.close()
    named = job_of(rt, lease.job_id).stages[0].checkpoint
    assert named is not None
    assert download_checkpoint(rt.store, tmp_path / "other", named, go_on)


def test_a_zombie_drops_no_checkpoint(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    lease = _lease(rt)
    reporter = Reporter(rt, lease, Keeper(rt, lease))
    reporter.recorded = lambda c: pytest.fail(f"{c} was not recorded")
    with rt.db.write() as session:
        session.get_one(Stage, lease.stage_id).lease_token = "another worker's"
    reporter.checkpoints.put({"step": 1, "path": "p", "uri": "u"})
    reporter.flush()
    assert reporter.keeper.lost.is_set()


def test_a_lost_checkpoint_costs_its_steps_not_the_job(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    gone = {"step": 3, "path": "work/checkpoint-3", "uri": "jobs/j/checkpoints/train/t/3"}
    assert not download_checkpoint(store, tmp_path / "run", gone, go_on)


def test_what_postgresql_cannot_hold_is_not_taken_in() -> None:
    line = _parse('{"kind": "metric", "step": 1, "metrics": {"a": NaN, "b": Infinity, "c": 1.5}}')
    assert line["metrics"] == {"a": None, "b": None, "c": 1.5}
    assert _parse("not \0 JSON")["message"] == "not \ufffd JSON"
    assert _parse('{"kind": "log", "message": "x\\u0000"}')["message"] == "x\ufffd"
