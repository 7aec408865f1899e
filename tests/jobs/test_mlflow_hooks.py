"""One event that several processes take in the same moment."""

from __future__ import annotations

import json
import threading

from sqlalchemy import select

from jobs.db import Database
from jobs.mlflow_hooks import Taken, take
from jobs.models import Attachment, Job
from jobs.settings import Settings
from tests.jobs.conftest import Clock

DATA = {"name": "acme-chat", "version": "7"}
BODY = json.dumps({"entity": "model_version", "action": "created", "data": DATA}).encode()


def test_it_is_attached_once_and_all_are_told_of_it(
    each_db: Database, settings: Settings, clock: Clock
) -> None:
    hooked = settings.model_copy(update={"mlflow_hook_names": ("acme-*",)})
    gate, taken = threading.Barrier(6), list[Taken]()

    def run() -> None:
        gate.wait()
        with each_db.write() as session:
            found = take(session, BODY, settings=hooked, now=clock.now)
        taken.append(found)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with each_db.read() as session:
        assert len(session.scalars(select(Job.id)).all()) == 1
        [attachment] = session.scalars(select(Attachment.id))
    assert {one.attachment_id for one in taken} == {attachment}
    assert sorted(one.replayed for one in taken) == [False, *[True] * 5]
