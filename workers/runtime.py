"""What a worker process has, and the sign of life it gives."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from jobs.db import Database
from jobs.leases import NOTHING
from jobs.models import Worker
from jobs.needs import Gpus
from jobs.settings import Settings
from jobs.store import ObjectStore, open_store
from workers.machine import gpus_here

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runtime:
    """The worker's settings, its clients, its name, its stop flag, its clock and its GPUs."""

    settings: Settings
    db: Database
    store: ObjectStore
    owner: str
    stop: threading.Event
    clock: Callable[[], datetime]
    has: Gpus = NOTHING

    @classmethod
    def start(cls, settings: Settings, stop: threading.Event) -> Self:
        """A runtime under a name that no other process has or had."""
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        settings.runs_dir.mkdir(parents=True, exist_ok=True)
        db, store = Database(settings.database_url), open_store(settings)
        return cls(settings, db, store, owner, stop, db.now, gpus_here(settings))


def show_presence(rt: Runtime) -> None:
    """Write this worker's row now and then; readiness and doctor read it."""
    started = rt.clock()
    while True:
        try:
            with rt.db.write() as session:
                row = Worker(id=rt.owner, started_at=started, seen_at=rt.clock(), has=str(rt.has))
                session.merge(row)
        except SQLAlchemyError as e:
            log.warning("cannot write this worker's sign of life: %s", type(e).__name__)
        if rt.stop.wait(rt.settings.heartbeat_seconds):
            return
