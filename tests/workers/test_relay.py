"""The relay's threads: each of its tasks has one that really runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.servers import wait_until
from tests.workers.conftest import MakeRuntime
from workers import relay
from workers.mirror import Mirror
from workers.versions import Watch


def test_it_mirrors_looks_collects_and_sends(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt, done = make_runtime(gc_seconds=0.01, mlflow_hook_names=("acme-*",)), set[str]()

    def doing(what: str, result: object = 0) -> Callable[..., object]:
        def done_now(*_: object, **__: object) -> object:
            done.add(what)
            return result

        return done_now

    monkeypatch.setattr(Mirror, "round", doing("mirrors"))
    monkeypatch.setattr(Watch, "look", doing("looks"))
    monkeypatch.setattr(relay, "collect", doing("collects", []))
    monkeypatch.setattr("workers.webhooks.relay", doing("sends"))
    stop = threading.Event()
    threads = relay.start_threads(rt.db, rt.settings, stop)
    try:
        wait_until(lambda: len(done) == 4, 20, "each of them")
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert done == {"mirrors", "looks", "collects", "sends"}
