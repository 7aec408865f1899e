"""The mirror's bookkeeping: nothing is lost while MLflow is away, nothing is told twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.drafts import add_draft
from jobs.errors import Invalid, RegistryUnavailable
from jobs.events import append_event
from jobs.ids import new_id, utcnow
from jobs.models import Draft
from jobs.registry import Point
from jobs.store_directory import DirectoryStore
from tests.workers.conftest import MakeRuntime, job_of, submit
from workers.mirror import Mirror
from workers.runtime import Runtime
from workers.stage import drain


class Recorder:
    """Stands where the registry's client stands, and remembers."""

    def __init__(self) -> None:
        self.away = False
        self.refuse = False
        self.points: list[Point] = []
        self.ended: list[str] = []
        self.files: list[str] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.versions: dict[str, dict[str, Any]] = {}
        self.aliases: dict[str, str] = {}

    def ensure_run(
        self, job_id: str, target: str, *, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        self._answer()
        assert params["train.ttt_steps"] == 3
        self.runs[job_id] = {"params": params, "tags": tags}
        return f"run-{job_id}"

    def log_metrics(self, run_id: str, points: Sequence[Point]) -> None:
        self._answer()
        if self.refuse:
            raise Invalid("a metric name it does not like")
        self.points += points

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        self._answer()

    def log_files(self, run_id: str, folder: Path, below: str | None = None) -> None:
        self._answer()
        self.files += sorted(p.name for p in folder.iterdir())

    def artifact_uri(self, run_id: str) -> str:
        return f"mlflow-artifacts:/1/{run_id}/artifacts"

    def end_run(self, run_id: str, status: str) -> None:
        self._answer()
        self.ended.append(status)

    def ensure_version(
        self, name: str, *, source: str, run_id: str | None, job_id: str, tags: Mapping[str, str]
    ) -> str:
        self._answer()
        if job_id not in self.versions:
            number = str(len(self.versions) + 1)
            self.versions[job_id] = {"number": number, "source": source, "tags": dict(tags)}
        return str(self.versions[job_id]["number"])

    def set_alias(self, name: str, alias: str, version: str) -> None:
        self._answer()
        self.aliases[alias] = version

    def version_of(self, name: str, alias: str) -> str | None:
        return self.aliases.get(alias)

    def _answer(self) -> None:
        if self.away:
            raise RegistryUnavailable("MLflow is away")


@pytest.fixture
def world(make_runtime: MakeRuntime) -> tuple[Runtime, Recorder, Mirror]:
    rt, recorder = make_runtime(), Recorder()
    return rt, recorder, Mirror(rt.db, rt.store, recorder, utcnow)  # type: ignore[arg-type]


def test_a_job_and_its_draft_are_copied_once(world: tuple[Runtime, Recorder, Mirror]) -> None:
    rt, recorder, mirror = world
    job_id = submit(rt)
    drain(rt)
    recorder.away = True
    with pytest.raises(RegistryUnavailable):
        mirror.round()
    assert job_of(rt, job_id).mirrored_seq == 0
    recorder.away = False
    mirror.round()
    mirror.round()
    steps = [p.step for p in recorder.points if "train/loss" in p.metrics]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert recorder.ended[-1] == "FINISHED"
    assert {"report.html", "certificate.json", "model.safetensors"} <= set(recorder.files)
    version = recorder.versions[job_id]
    assert version["source"] == f"mlflow-artifacts:/1/run-{job_id}/artifacts/draft"
    assert version["tags"]["aux_layers"] == "2,4,6"
    assert version["tags"]["gate"] == "passed"
    expected = {"candidate": "1", "champion": "1", f"for-{'b' * 12}": "1"}
    assert recorder.aliases == expected
    assert isinstance(rt.store, DirectoryStore)
    assert mirror.round() == 0


def test_what_a_draft_goes_on_from_is_told(world: tuple[Runtime, Recorder, Mirror]) -> None:
    rt, recorder, mirror = world
    first = submit(rt)
    drain(rt)
    second = submit(rt, overrides={"train": {"start_from": "draft:eagle3--demo@champion"}})
    drain(rt)
    mirror.round()
    result = job_of(rt, first).result
    assert result is not None
    parent = result["draft_id"]
    assert "parent_draft" not in recorder.versions[first]["tags"]
    assert recorder.versions[second]["tags"]["parent_draft"] == parent
    assert recorder.runs[second]["tags"]["parent_draft"] == parent
    assert recorder.runs[second]["params"]["train.start_from"] == f"draft:{parent}"


def register(rt: Runtime, *, champion: bool) -> None:
    job_id, now = submit(rt), utcnow()
    draft = Draft(
        id=new_id("dft_", now), job_id=job_id, owner="local", name="m", target="org/m",
        target_resolved="org/m@abc", weights_sha256="b" * 64, tokenizer_sha256="c",
        template_sha256="d", capture_layers=[2, 4, 6], metrics={"tau": 2.0}, uri="drafts/x",
        manifest_sha256="e", created_at=now,
    )  # fmt: skip
    with rt.db.write() as session:
        add_draft(session, draft, champion=champion, now=now)


def test_a_new_champion_leaves_the_former_as_previous(
    world: tuple[Runtime, Recorder, Mirror],
) -> None:
    rt, recorder, mirror = world
    for champion in (True, True, False):
        register(rt, champion=champion)
        mirror.round()
    assert recorder.aliases["champion"] == "2"
    assert recorder.aliases["previous"] == "1"
    assert recorder.aliases["candidate"] == "3"


def test_an_older_draft_that_comes_late_moves_no_alias_back(
    world: tuple[Runtime, Recorder, Mirror],
) -> None:
    rt, recorder, mirror = world
    register(rt, champion=True)
    register(rt, champion=True)
    mirror.round()  # both at once, the older one first: it is neither newest nor champion
    assert recorder.aliases["champion"] == recorder.aliases["candidate"] == "2"
    assert "previous" not in recorder.aliases


def test_what_mlflow_refuses_holds_up_nothing(world: tuple[Runtime, Recorder, Mirror]) -> None:
    rt, recorder, mirror = world
    recorder.refuse = True
    job_id = submit(rt)
    data = {"points": [{"t": None, "step": 1, "metrics": {"train/loss": 1.0}}]}
    with rt.db.write() as session:
        append_event(session, job_id, "metrics", "step 1", now=utcnow(), data=data)
    mirror.round()
    job = job_of(rt, job_id)
    assert job.mirrored_seq == job.event_seq == 2
