"""The mirror's bookkeeping: nothing is lost while MLflow is away, nothing is told twice."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException, get_error_code
from mlflow.protos.databricks_pb2 import ErrorCode
from sqlalchemy import select, update

from jobs.drafts import add_draft, get_draft, promote, roll_back
from jobs.errors import Invalid, RegistryRefused, RegistryUnavailable
from jobs.events import append_event
from jobs.ids import new_id, utcnow
from jobs.models import Draft, Outbox, OutboxKind
from jobs.registry import Dataset, Point, _translated
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
        self.unknown = False
        self.asked = 0
        self.points: list[Point] = []
        self.ended: list[str] = []
        self.files: list[str] = []
        self.datasets: list[Dataset | None] = []
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

    def log_dataset(self, run_id: str, data: Dataset | None) -> None:
        self._answer()
        self.datasets.append(data)

    def ensure_version(
        self,
        name: str,
        *,
        source: str,
        run_id: str | None,
        job_id: str,
        tags: Mapping[str, str],
        description: str,
    ) -> str:
        self._answer()
        if job_id not in self.versions:
            number = str(len(self.versions) + 1)
            made = {"number": number, "source": source, "tags": dict(tags)}
            self.versions[job_id] = {**made, "description": description}
        return str(self.versions[job_id]["number"])

    def set_alias(self, name: str, alias: str, version: str) -> None:
        self._answer()
        self.aliases[alias] = version

    def version_of(self, name: str, alias: str) -> str | None:
        return self.aliases.get(alias)

    def _answer(self) -> None:
        self.asked += 1
        if self.away:
            raise RegistryUnavailable("MLflow is away")
        if self.unknown:
            raise RegistryRefused("401; set MLFLOW_TRACKING_TOKEN")


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
    assert {"report.html", "certificate.md", "model.safetensors"} <= set(recorder.files)
    version = recorder.versions[job_id]
    assert version["source"] == f"mlflow-artifacts:/1/run-{job_id}/artifacts/draft"
    assert version["tags"]["aux_layers"] == "2,4,6"
    assert version["tags"]["gate"] == "passed"
    first, *facts = version["description"].splitlines()
    assert first.startswith("EAGLE-3 draft `dft_")
    assert any(line.startswith("- **Acceptance length 2") for line in facts), facts
    assert all(data == recorder.datasets[0] for data in recorder.datasets)
    assert recorder.datasets[0] is not None
    expected = {"candidate": "1", "champion": "1", f"for-{'b' * 12}": "1", f"for-{'a' * 12}": "1"}
    assert recorder.aliases == expected
    assert isinstance(rt.store, DirectoryStore)
    assert mirror.round() == 0


def test_what_is_attached_and_not_promoted_has_its_checkpoints_alias(
    world: tuple[Runtime, Recorder, Mirror],
) -> None:
    rt, recorder, mirror = world
    job_id = submit(rt, attach={"promote": False})
    drain(rt)
    mirror.round()
    names = ("candidate", f"for-{'b' * 12}", f"for-{'a' * 12}")
    assert recorder.aliases == dict.fromkeys(names, "1")
    assert recorder.versions[job_id]["tags"]["attach.decision"] == "train"


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
    assert recorder.aliases["previous"] == "1"


def test_promotions_that_mlflow_slept_through_end_where_the_database_is(
    world: tuple[Runtime, Recorder, Mirror],
) -> None:
    rt, recorder, mirror = world
    for champion in (True, False, False):
        register(rt, champion=champion)
    mirror.round()
    with rt.db.read() as session:
        ids = session.scalars(select(Draft.id).order_by(Draft.id)).all()
    for draft_id in ids[1:]:
        with rt.db.write() as session:
            promote(session, get_draft(session, draft_id), now=utcnow())
    mirror.round()
    assert (recorder.aliases["champion"], recorder.aliases["previous"]) == ("3", "2")
    with rt.db.write() as session:
        roll_back(session, get_draft(session, ids[2]), now=utcnow())
    mirror.round()
    assert (recorder.aliases["champion"], recorder.aliases["previous"]) == ("2", "3")


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


@pytest.mark.parametrize("ended", [False, True])
def test_refused_credentials_are_said_once_and_lose_nothing(
    world: tuple[Runtime, Recorder, Mirror], caplog: pytest.LogCaptureFixture, ended: bool
) -> None:
    """Refused at a job's metrics, or at its draft."""
    rt, recorder, mirror = world
    if ended:
        register(rt, champion=True)
        register(rt, champion=True)
    else:
        job_id = submit(rt)
        data = {"points": [{"t": None, "step": 1, "metrics": {"train/loss": 1.0}}]}
        with rt.db.write() as session:
            append_event(session, job_id, "metrics", "step 1", now=utcnow(), data=data)
    recorder.unknown = True
    for _ in range(3):
        assert mirror.round() == 0 or ended
    assert recorder.asked == 1
    assert [r.levelname for r in caplog.records if "MLFLOW_TRACKING_TOKEN" in r.message] == [
        "ERROR"
    ]
    recorder.unknown = False
    again = Mirror(rt.db, rt.store, recorder, lambda: utcnow() + timedelta(minutes=10))  # type: ignore[arg-type]
    again.round()
    if ended:
        assert recorder.aliases["champion"] == "2"
    else:
        assert [p.step for p in recorder.points] == [1]


class Slow(Recorder):
    """Looks, and is asked by a rival before it has made what was not there."""

    def __init__(self, waits_at: str) -> None:
        super().__init__()
        self.waits_at = waits_at
        self.made: list[str] = []
        self.looking, self.go_on = threading.Event(), threading.Event()

    def ensure_run(self, job_id: str, *args: Any, **kwargs: Any) -> str:
        return self._ensured("run", job_id)

    def ensure_version(self, name: str, *, job_id: str, **kwargs: Any) -> str:
        return self._ensured("version", job_id)

    def set_alias(self, name: str, alias: str, version: str) -> None:
        self._wait("alias")
        super().set_alias(name, alias, version)

    def _ensured(self, kind: str, job_id: str) -> str:
        if (thing := f"{kind}-{job_id}") not in self.made:
            self._wait(kind)
            self.made.append(thing)
        return thing

    def _wait(self, kind: str) -> None:
        if kind == self.waits_at and not self.looking.is_set():
            self.looking.set()
            assert self.go_on.wait(20)


def again(rt: Runtime) -> None:
    """The outbox's minute is over: what is not sent is due."""
    with rt.db.write() as session:
        session.execute(
            update(Outbox).where(Outbox.sent_at.is_(None)).values(available_at=utcnow())
        )


@pytest.mark.parametrize("waits_at", ["run", "version"])
def test_two_relays_make_no_second_run_or_version(make_runtime: MakeRuntime, waits_at: str) -> None:
    rt, slow = make_runtime(), Slow(waits_at)
    one, other = (Mirror(rt.db, rt.store, slow, utcnow) for _ in range(2))  # type: ignore[arg-type]
    job_id = submit(rt)
    drain(rt)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.round)
        assert slow.looking.wait(20)
        again(rt)
        other.round()
        assert slow.made == ([] if waits_at == "run" else [f"run-{job_id}"])
        slow.go_on.set()
        first.result(20)
    again(rt)
    other.round()
    assert slow.made == [f"run-{job_id}", f"version-{job_id}"]
    with rt.db.read() as session:
        assert session.scalars(select(Draft.mlflow_version)).all() == [f"version-{job_id}"]
        waiting = Outbox.sent_at.is_(None), Outbox.kind == OutboxKind.MIRROR
        assert session.scalars(select(Outbox.id).where(*waiting)).all() == []


def test_a_slow_relay_does_not_undo_a_promotion(make_runtime: MakeRuntime) -> None:
    """It has read who is champion, and another relay is to say who is now."""
    rt, slow = make_runtime(), Slow("alias")
    one, other = (Mirror(rt.db, rt.store, slow, utcnow) for _ in range(2))  # type: ignore[arg-type]
    register(rt, champion=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.round)
        assert slow.looking.wait(20)
        register(rt, champion=True)
        other.round()
        slow.go_on.set()
        first.result(20)
    again(rt)
    other.round()
    with rt.db.read() as session:
        champion = session.scalars(select(Draft).where(Draft.alias == "champion")).one()
    assert slow.aliases["champion"] == f"version-{champion.job_id}"


@pytest.mark.parametrize(("status", "code"), [(401, None), (403, None), (403, "PERMISSION_DENIED")])
def test_a_server_that_refuses_the_credentials_is_not_away(status: int, code: str | None) -> None:
    error = MlflowException("no", error_code=ErrorCode.Value(code)) if code else None
    with pytest.raises(RegistryRefused, match="MLFLOW_TRACKING_USERNAME"), _translated():
        raise error or MlflowException("no", error_code=get_error_code(status))
