"""Keeps a lease alive from a thread of its own, and learns there of cancellation and of loss."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from types import TracebackType
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from jobs import leases
from jobs.errors import LeaseLost
from jobs.leases import Lease
from jobs.states import JobStatus
from workers.runtime import Runtime

log = logging.getLogger(__name__)


class Keeper:
    """While entered, the lease is renewed every `heartbeat_seconds`.

    `cancel` and `pause` are set when the job has been asked to stop. `lost` is set when the stage
    is another's, or when the database has not answered for as long as the lease lasts: by then it
    may be.
    """

    def __init__(self, rt: Runtime, lease: Lease) -> None:
        self.rt = rt
        self.lease = lease
        self.cancel = threading.Event()
        self.pause = threading.Event()
        self.lost = threading.Event()
        self._left = threading.Event()
        self._renewed = rt.clock()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._thread.join()

    def check(self) -> None:
        """Raise `LeaseLost` when the lease is gone; long work calls this between its steps."""
        if self.lost.is_set():
            raise LeaseLost(f"{self.lease.stage} of {self.lease.job_id} is no longer ours")

    def beat(self) -> None:
        """Renew once, and read the flags."""
        rt, now = self.rt, self.rt.clock()
        try:
            with rt.db.write() as session:
                status = leases.heartbeat(session, self.lease, settings=rt.settings, now=now)
        except LeaseLost:
            self.lost.set()
        except SQLAlchemyError as e:
            log.warning("heartbeat failed: %s", type(e).__name__, extra=self.context())
            if now - self._renewed > timedelta(seconds=rt.settings.lease_seconds):
                self.lost.set()
        else:
            self._renewed = now
            if status == JobStatus.CANCELLING:
                self.cancel.set()
            elif status == JobStatus.PAUSING:
                self.pause.set()

    def context(self) -> dict[str, object]:
        """Fields for a log line about this stage."""
        lease = self.lease
        return {"job_id": lease.job_id, "stage": lease.stage, "attempt": lease.attempt}

    def _run(self) -> None:
        while not self._left.wait(self.rt.settings.heartbeat_seconds):
            self.beat()
            if self.lost.is_set():
                return
