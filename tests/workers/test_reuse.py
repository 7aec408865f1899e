"""What one job made, another uses: found by digest, checked, and said."""

from __future__ import annotations

from typing import Any

from jobs import service
from jobs.files import Check, go_on
from jobs.ids import utcnow
from jobs.models import JobEvent
from jobs.states import JobStatus
from tests.workers.conftest import MakeRuntime, events_of, job_of, submit
from workers.runtime import Runtime
from workers.stage import drain

SHARED = ("prepare", "regenerate", "extract", "train", "export")
MEASURED = ("parity", "benchmark", "prove")


def done(rt: Runtime, job_id: str) -> dict[str, JobEvent]:
    return {e.data["stage"]: e for e in events_of(rt, job_id) if e.type == "stage.succeeded"}


def said(rt: Runtime, job_id: str) -> list[str]:
    return [e.message for e in events_of(rt, job_id)]


def test_a_second_job_uses_what_the_first_has_made_on_any_machine(
    make_runtime: MakeRuntime,
) -> None:
    rt = make_runtime()
    first = submit(rt)
    drain(rt)
    other = make_runtime(machine="two")
    second = submit(other)
    drain(other)
    assert job_of(other, second).status == JobStatus.SUCCEEDED
    assert "starting at step 0" in said(rt, first)
    assert "starting at step 0" not in said(rt, second)
    events = done(other, second)
    assert {s: e.data.get("reused") for s, e in events.items() if s in SHARED} == {
        s: {"job_id": first} for s in SHARED
    }
    assert not any("reused" in events[stage].data for stage in ("resolve", *MEASURED))
    assert events["extract"].message == (f"extract done: its outputs were there, from job {first}")
    assert "reused" not in done(rt, first)["extract"].data
    folder = other.settings.runs_dir / second / "stages" / "extract" / "extract-digest"
    assert (folder / "out.txt").read_text() == "extract"
    uris = [{s.name: s.uri for s in job_of(rt, one).stages} for one in (first, second)]
    assert uris[0]["extract"] == uris[1]["extract"]


def test_outputs_that_are_damaged_are_made_and_stored_anew(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    first = submit(rt)
    drain(rt)
    uri = next(s.uri for s in job_of(rt, first).stages if s.name == "train")
    rt.store.put_bytes(f"{uri}/draft.safetensors", b"spoiled")
    other = make_runtime(machine="two")
    second = submit(other)
    drain(other)
    assert job_of(other, second).status == JobStatus.SUCCEEDED
    assert "starting at step 0" in said(other, second)
    assert "reused" not in done(other, second)["train"].data
    assert rt.store.get_bytes(f"{uri}/draft.safetensors") == b"weights"
    third = submit(other)
    drain(other)
    assert done(other, third)["train"].data["reused"] == {"job_id": first}


def test_cancel_while_outputs_are_looked_for(make_runtime: MakeRuntime, monkeypatch: Any) -> None:
    rt = make_runtime()
    first = submit(rt)
    drain(rt)
    other = make_runtime(machine="two")
    second = submit(other)
    get_file = other.store.get_file

    def slow(key: str, path: Any, sha256: Any = None, check: Check = go_on) -> None:
        if key.startswith("stages/train"):
            with other.db.write() as session:
                service.request_cancel(session, second, now=utcnow())
            while True:
                check()
        get_file(key, path, sha256, check)

    monkeypatch.setattr(other.store, "get_file", slow)
    drain(other)
    assert job_of(other, second).status == JobStatus.CANCELLED
    assert job_of(other, first).status == JobStatus.SUCCEEDED
