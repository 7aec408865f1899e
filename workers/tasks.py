"""The task, and the worker's life around it: one runtime a process, a stop flag, a sign of life."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from celery.signals import worker_ready, worker_shutting_down

from jobs import tracing
from jobs.settings import Settings
from workers.app import RUN_STAGE, app
from workers.cleaning import clean_now_and_then
from workers.runtime import Runtime, show_presence
from workers.stage import drain

STOP = threading.Event()
"""Set when this worker has been told to go; its stage is stopped and given back."""


@cache
def runtime() -> Runtime:
    """This process's settings, database and store."""
    return Runtime.start(Settings(), STOP)


def run_stage(job_id: str, stage: str) -> None:
    """A hint that `stage` of `job_id` waits: take the best eligible stages until none is left."""
    drain(runtime())


def _ready(**_: Any) -> None:
    tracing.configure("updraft-worker")
    for name, loop in (("presence", show_presence), ("cleaning", clean_now_and_then)):
        threading.Thread(target=loop, args=(runtime(),), name=name, daemon=True).start()


def _stop(**_: Any) -> None:
    STOP.set()


app.task(name=RUN_STAGE)(run_stage)
worker_ready.connect(_ready)
worker_shutting_down.connect(_stop)
