"""Versions that no webhook told of are found, once."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from jobs.errors import RegistryRefused, RegistryUnavailable
from jobs.ids import utcnow
from jobs.mlflow_hooks import ModelVersion, attach_version
from jobs.models import Job
from tests.workers.conftest import MakeRuntime
from workers import versions
from workers.runtime import Runtime
from workers.versions import Watch, watch_loop

Version = tuple[str, str, dict[str, str]]


class Registered:
    """Stands where the registry's client stands."""

    def __init__(self, *found: Version) -> None:
        self.found = found
        self.since: list[datetime] = []

    def versions_since(self, since: datetime) -> list[Version]:
        self.since.append(since)
        if not self.found:
            raise RegistryUnavailable("MLflow is away")
        return list(self.found)


def watch(rt: Runtime, *found: Version) -> Watch:
    return Watch(rt.db, rt.settings, Registered(*found))  # type: ignore[arg-type]


def targets(rt: Runtime) -> list[str]:
    with rt.db.read() as session:
        return sorted(session.scalars(select(Job.target)))


def test_new_versions_are_attached_and_none_twice(make_runtime: MakeRuntime) -> None:
    rt = make_runtime(mlflow_hook_names=("acme-*",))
    with rt.db.write() as session:  # of this one a webhook has told
        told = ModelVersion(name="acme-chat", version="1")
        assert attach_version(session, told, settings=rt.settings, now=utcnow()).attachment_id
    seen = watch(
        rt, ("acme-chat", "1", {}), ("acme-chat", "2", {"job_id": "7"}), ("other", "1", {}),
        ("acme-drafts", "1", {"draft_id": "dft_1", "job_id": "job_1"}),
    )  # fmt: skip
    assert (seen.look(), seen.look()) == (1, 0)
    assert targets(rt) == ["models:/acme-chat/1", "models:/acme-chat/2"]


def test_one_that_is_refused_holds_up_no_other_and_is_told_of_once(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    rt = make_runtime(mlflow_hook_names=("acme*",), max_active_jobs=1)
    seen = watch(rt, ("acme chat", "1", {}), ("acme-chat", "1", {}), ("acme-chat", "2", {}))
    assert (seen.look(), seen.look()) == (1, 0)
    assert targets(rt) == ["models:/acme-chat/1"]
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 2
    assert "version 1 of acme chat is not attached" in said[0]
    assert "version 2 of acme-chat is not attached" in said[1]


def test_it_looks_back_as_far_as_it_is_told(make_runtime: MakeRuntime) -> None:
    rt = make_runtime(mlflow_hook_names=("acme-*",), mlflow_hook_hours=2)
    seen = Registered(("other", "1", {}))
    Watch(rt.db, rt.settings, seen).look()  # type: ignore[arg-type]
    assert utcnow() - seen.since[0] - timedelta(hours=2) < timedelta(minutes=1)


@pytest.mark.parametrize("configured", [{}, {"mlflow_hook_names": ("a",), "mlflow_hook_hours": 0}])
def test_nobody_is_asked_where_nothing_is_to_be_attached(
    make_runtime: MakeRuntime, configured: dict[str, object]
) -> None:
    seen = watch(make_runtime(**configured))
    watch_loop(seen, threading.Event())
    assert seen.registry.since == []  # type: ignore[attr-defined]


def test_refused_credentials_are_said_once(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Watch) -> int:
        raise RegistryRefused("401; set MLFLOW_TRACKING_TOKEN")

    monkeypatch.setattr(Watch, "look", refuse)
    watch_loop(watch(make_runtime(mlflow_hook_names=("acme-*",))), threading.Event())
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "MLFLOW_TRACKING_TOKEN" in caplog.text


def test_it_goes_on_when_mlflow_was_away(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "EVERY_S", 0.01)
    rt, stop = make_runtime(mlflow_hook_names=("acme-*",)), threading.Event()
    seen = watch(rt)
    thread = threading.Thread(target=watch_loop, args=(seen, stop))
    thread.start()
    registered = seen.registry
    while not registered.since:  # type: ignore[attr-defined]
        stop.wait(0.01)
    registered.found = (("acme-chat", "1", {}),)  # type: ignore[attr-defined]
    while not targets(rt):
        stop.wait(0.01)
    stop.set()
    thread.join(20)
    assert targets(rt) == ["models:/acme-chat/1"]
