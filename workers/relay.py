"""The relay process: sends the outbox's hints, sweeps, and mirrors to MLflow.

    python -m workers.relay

Any number may run on PostgreSQL; SQLite has one. The mirror has a thread of its own, so that an
MLflow that hangs holds up no job.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from jobs import logs
from jobs.db import Database
from jobs.errors import RegistryUnavailable
from jobs.ids import utcnow
from jobs.models import Outbox, OutboxKind
from jobs.outbox import relay
from jobs.registry import Registry
from jobs.settings import Settings
from jobs.store import open_store
from jobs.sweeper import Swept, sweep
from workers.app import RUN_STAGE, app
from workers.mirror import Mirror

log = logging.getLogger(__name__)

MIRROR_S = 2.0
RETRY_S = 15.0
"""Wait after a round that failed: the database, the broker or MLflow is away."""


def publish(record: Outbox) -> None:
    """Send a hint: the job and the stage, nothing else."""
    app.send_task(RUN_STAGE, args=[record.job_id, record.payload["stage"]])


def relay_loop(db: Database, settings: Settings, stop: threading.Event) -> None:
    """Send hints as they come and sweep now and then, until told to stop."""
    until_sweep = 0.0
    while not stop.is_set():
        wait = settings.relay_seconds
        try:
            sent = relay(db, OutboxKind.HINT, publish, clock=utcnow)
            if until_sweep <= 0:
                _tell(sweep(db, settings, utcnow()))
                until_sweep = settings.sweep_seconds
            wait = 0.0 if sent else wait
        except Exception:  # the loop outlives whatever its servers do
            log.exception("relay round failed; trying again in %g s", RETRY_S)
            wait = RETRY_S
        stop.wait(wait)
        until_sweep -= wait


def mirror_loop(mirror: Mirror, stop: threading.Event) -> None:
    """Mirror to MLflow until told to stop."""
    away = False
    while not stop.is_set():
        wait = MIRROR_S
        try:
            mirror.round()
            if away:
                log.info("MLflow is back")
            away = False
        except RegistryUnavailable as e:
            if not away:
                log.warning("%s; the mirror waits, jobs go on", e)
            away, wait = True, RETRY_S
        except Exception:
            log.exception("mirror round failed; trying again in %g s", RETRY_S)
            wait = RETRY_S
        stop.wait(wait)


def main() -> None:
    """Run until TERM or INT."""
    logs.configure()
    settings = Settings()
    stop = threading.Event()

    def handle(signum: int, frame: Any) -> None:
        stop.set()

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, handle)
    db = Database(settings.database_url)
    mirror = Mirror(db, open_store(settings), Registry(settings), utcnow)
    thread = threading.Thread(target=mirror_loop, args=(mirror, stop), daemon=True)
    thread.start()
    log.info("relay started")
    relay_loop(db, settings, stop)
    thread.join(timeout=5)
    log.info("relay stopped")


def _tell(swept: Swept) -> None:
    if swept.expired or swept.resent or swept.cancelled:
        log.info(
            "swept: %d leases expired, %d hints sent again, %d jobs cancelled",
            swept.expired,
            swept.resent,
            swept.cancelled,
        )


if __name__ == "__main__":
    main()
