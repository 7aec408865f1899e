"""The relay process: sends the outbox's hints and webhooks, sweeps, mirrors to MLflow, looks there
for new versions, and collects what nobody needs.

    python -m workers.relay

Any number may run on PostgreSQL; SQLite has one. All but hints and sweeps have threads of their
own, so that an MLflow or a store that hangs holds up no job.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from jobs import logs
from jobs.db import Database
from jobs.errors import RegistryUnavailable
from jobs.garbage import collect
from jobs.models import Outbox, OutboxKind
from jobs.needs import ANY, queue_of
from jobs.outbox import relay
from jobs.quotas import GB
from jobs.registry import Registry
from jobs.settings import Settings
from jobs.store import ObjectStore, open_store
from jobs.sweeper import Swept, sweep
from workers.app import RUN_STAGE, app
from workers.mirror import Mirror
from workers.versions import Watch, watch_loop
from workers.webhooks import webhook_threads

log = logging.getLogger(__name__)

MIRROR_S = 2.0
RETRY_S = 15.0
"""Wait after a round that failed: the database, the broker or MLflow is away."""


def publish(record: Outbox) -> None:
    """Send a hint to the workers that have what it needs: the job and the stage, nothing else."""
    queue = queue_of(record.payload.get("needs", ANY))
    app.send_task(RUN_STAGE, args=[record.job_id, record.payload["stage"]], queue=queue)


def relay_loop(db: Database, settings: Settings, stop: threading.Event) -> None:
    """Send hints as they come and sweep now and then, until told to stop."""
    until_sweep = 0.0
    while not stop.is_set():
        wait = settings.relay_seconds
        try:
            sent = relay(db, OutboxKind.HINT, publish, clock=db.now)
            if until_sweep <= 0:
                _tell(sweep(db, settings, db.now()))
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


def garbage_loop(
    db: Database, store: ObjectStore, settings: Settings, stop: threading.Event
) -> None:
    """Remove from the store what nobody needs, now and then, until told to stop."""
    while settings.gc_seconds and not stop.wait(settings.gc_seconds):
        try:
            waste = collect(db, store, settings, db.now())
        except Exception:
            log.exception("collection failed; trying again in %g s", settings.gc_seconds)
        else:
            if waste:
                size = sum(one.bytes for one in waste) / GB
                log.info("removed %d things from the store, %.2f GB", len(waste), size)


def start_threads(
    db: Database, settings: Settings, stop: threading.Event
) -> list[threading.Thread]:
    """Start all that is done beside hints and sweeps, until told to stop."""
    store, registry = open_store(settings), Registry(settings)
    loops: tuple[tuple[Callable[..., None], tuple[Any, ...]], ...] = (
        (mirror_loop, (Mirror(db, store, registry, db.now), stop)),
        (watch_loop, (Watch(db, settings, registry), stop)),
        (garbage_loop, (db, store, settings, stop)),
    )
    threads = [threading.Thread(target=loop, args=args, daemon=True) for loop, args in loops]
    for thread in threads:
        thread.start()
    return [*threads, *webhook_threads(db, settings, db.now, stop)]


def main() -> None:
    """Run until TERM or INT."""
    settings = Settings()
    logs.configure(settings)
    stop = threading.Event()

    def handle(signum: int, frame: Any) -> None:
        stop.set()

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, handle)
    db = Database(settings.database_url)
    threads = start_threads(db, settings, stop)
    log.info("relay started")
    relay_loop(db, settings, stop)
    for one in threads:
        one.join(timeout=5)
    log.info("relay stopped")


def _tell(swept: Swept) -> None:
    if swept.expired or swept.resent or swept.stopped:
        log.info(
            "swept: %d leases expired, %d hints sent again, %d jobs stopped",
            swept.expired,
            swept.resent,
            swept.stopped,
        )


if __name__ == "__main__":
    main()
