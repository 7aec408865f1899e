"""What the collection removes from a store, what it keeps, and that nobody is robbed meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs import outputs
from jobs.db import Database
from jobs.garbage import Waste, collect
from jobs.models import Output
from jobs.service import ALL_STAGES
from jobs.settings import Settings
from jobs.store import open_store
from jobs.store_directory import DirectoryStore
from tests.jobs.conftest import Clock
from tests.jobs.world import World

DAY = 86400.0


class Yard(World):
    """A world with a store."""

    store: DirectoryStore

    def keep(self, prefix: str, size: int = 3) -> None:
        """Store outputs as a worker does."""
        _, stage, digest, _ = prefix.split("/")
        now = self.clock.now
        with self.db.write() as s:
            assert outputs.hold(
                s, prefix, stage=stage, digest=digest, owner="local", size=size, now=now
            )
        self.put(f"{prefix}/features/0.safetensors", b"x" * size)
        self.put(f"{prefix}/manifest.json", b"{}")
        with self.db.write() as s:
            outputs.completed(s, prefix, self.clock.now)

    def put(self, key: str, data: bytes = b"x") -> None:
        self.store.put_bytes(key, data)
        at = self.clock.now.timestamp()
        os.utime(self.store.root / key, (at, at))

    def collect(self, *, dry_run: bool = False) -> list[str]:
        found = collect(self.db, self.store, self.settings, self.clock.now, dry_run=dry_run)
        return [waste.prefix for waste in found]


@pytest.fixture
def yard(each_db: Database, settings: Settings, clock: Clock) -> Yard:
    made = Yard(each_db, settings, clock)
    store = open_store(settings)
    assert isinstance(store, DirectoryStore)
    made.store = store
    store.root.mkdir(parents=True)
    return made


def use(yard: Yard, prefix: str) -> str:
    """A job whose first stage has these outputs."""
    job_id = yard.submit()
    lease = yard.leased()
    yard.finish(lease)
    with yard.db.write() as s:
        stage = s.merge(yard.stage(job_id))
        stage.uri = prefix
    return job_id


def test_outputs_go_when_they_are_old_and_their_jobs_have_ended(yard: Yard) -> None:
    yard.keep("stages/extract/d/1")
    job_id = use(yard, "stages/extract/d/1")
    yard.clock.forward(31 * DAY)
    assert "stages/extract/d/1" not in yard.collect()
    yard.cancel(job_id)
    assert "stages/extract/d/1" in yard.collect(dry_run=True)
    assert yard.store.exists("stages/extract/d/1/manifest.json")
    assert "stages/extract/d/1" in yard.collect()
    assert yard.store.list("stages/") == []
    assert not (yard.store.root / "stages").exists()
    assert yard.collect() == []


def test_a_use_keeps_them(yard: Yard) -> None:
    yard.keep("stages/extract/d/1")
    yard.clock.forward(20 * DAY)
    with yard.db.write() as s:
        assert outputs.find(s, "extract", "d", owner="local", now=yard.clock.now)
    yard.clock.forward(20 * DAY)
    assert yard.collect() == []
    yard.clock.forward(20 * DAY)
    assert yard.collect() == ["stages/extract/d/1"]


def test_too_much_is_stored_and_the_least_used_goes(yard: Yard) -> None:
    yard.settings = yard.settings.model_copy(update={"store_gb": 25e-9})
    for digest in "abc":
        yard.keep(f"stages/extract/{digest}/1", size=10)
        yard.clock.forward(2 * DAY)
    job_id = use(yard, "stages/extract/a/1")  # the oldest, but needed
    with yard.db.read() as s:
        assert s.get_one(Output, "stages/extract/b/1").bytes == 10
    assert yard.collect() == ["stages/extract/b/1"]
    assert yard.collect() == []
    yard.cancel(job_id)
    yard.keep("stages/extract/e/1", size=10)
    assert yard.collect() == ["stages/extract/a/1"]


def test_what_is_fresh_is_not_touched_whatever_the_settings(yard: Yard) -> None:
    changes = {"store_gb": 1e-9, "keep_outputs_days": 0.0}
    yard.settings = yard.settings.model_copy(update=changes)
    yard.keep("stages/extract/d/1")
    yard.put("stages/extract/x/1/half.bin")
    assert yard.collect() == []
    yard.clock.forward(DAY + 1)
    assert yard.collect() == ["stages/extract/d/1", "stages/extract/x/1"]


def test_checkpoints_go_with_a_success_and_stay_for_a_retry(yard: Yard) -> None:
    done = yard.submit()
    for _ in ALL_STAGES:
        yard.finish(yard.leased())
    gone, live = yard.submit(), yard.submit()
    yard.cancel(gone)
    for job_id in (done, gone, live):
        yard.put(f"jobs/{job_id}/checkpoints/train/token/5/state.json")
        yard.put(f"jobs/{job_id}/logs/train.jsonl")
    assert yard.collect() == [f"jobs/{done}/checkpoints"]
    yard.clock.forward(31 * DAY)
    assert f"jobs/{gone}/checkpoints" in yard.collect()
    left = yard.store.list("jobs/")
    logs = [f"jobs/{job_id}/logs/train.jsonl" for job_id in (done, gone, live)]
    assert left == sorted([*logs, f"jobs/{live}/checkpoints/train/token/5/state.json"])


def test_what_comes_into_use_meanwhile_stays(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.keep("stages/extract/d/1")
    yard.clock.forward(40 * DAY)

    def used_just_now(under: str) -> object:
        if under == "stages/":
            with yard.db.write() as s:
                assert outputs.find(s, "extract", "d", owner="local", now=yard.clock.now)
        return iter(())

    monkeypatch.setattr(yard.store, "entries", used_just_now)
    assert yard.collect() == []
    assert yard.store.exists("stages/extract/d/1/manifest.json")


def test_an_interrupted_removal_is_taken_up(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.keep("stages/extract/d/1")
    yard.clock.forward(40 * DAY)
    delete, calls = yard.store.delete, []

    def dies_after_the_first(key: str) -> None:
        calls.append(key)
        if len(calls) == 2:
            raise KeyboardInterrupt
        delete(key)

    monkeypatch.setattr(yard.store, "delete", dies_after_the_first)
    with pytest.raises(KeyboardInterrupt):
        yard.collect()
    assert calls[0] == "stages/extract/d/1/manifest.json"
    with yard.db.write() as s:
        assert outputs.find(s, "extract", "d", owner="local", now=yard.clock.now) is None
    monkeypatch.undo()
    found = collect(yard.db, yard.store, yard.settings, yard.clock.now)
    assert found == [Waste("stages/extract/d/1", 3, "its removal was interrupted")]
    assert yard.store.list("stages/") == []


def test_folders_that_are_empty_go_with_their_last_file(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put_bytes("a/b/c", b"1")
    store.put_bytes("a/d", b"22")
    store.delete("a/b/c")
    assert not (tmp_path / "store" / "a" / "b").exists()
    assert [(e.key, e.bytes) for e in store.entries("a")] == [("a/d", 2)]
    store.delete("a/d")
    assert store.root.is_dir()
