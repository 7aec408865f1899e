"""The Celery application. Only a hint travels through it: a job id and a stage name.

Each kind of need has its queue (`jobs.needs`), so that a hint wakes a worker that can act on it.
Early acknowledgement, no results, no retries, no limits of Celery's own: the database knows what is
to be done, and the supervisor stops what takes too long. Importing this never imports torch.

    python -m celery -A workers.app worker -P threads -c 1 --without-gossip --without-mingle
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import celeryd_init, setup_logging
from kombu import Queue

from jobs import logs
from jobs.needs import queue_of, serves
from jobs.settings import Settings
from workers.machine import gpus_here

RUN_STAGE = "updraft.run_stage"
"""Name of the one task; never changes, since messages outlive a deployment."""

DAY_S = 86400


def make_app(settings: Settings) -> Celery:
    """The application for a broker: Redis, or folders that are made here."""
    app = Celery("updraft", include=["workers.tasks"])
    app.conf.update(
        broker_url=settings.broker_url,
        broker_connection_retry_on_startup=True,
        broker_transport_options=_transport(settings),
        task_default_queue="updraft",
        task_acks_late=False,
        task_ignore_result=True,
        result_backend=None,
        task_serializer="json",
        accept_content=["json"],
        task_publish_retry=True,
        task_publish_retry_policy={"max_retries": 3, "interval_max": 1.0},
        visibility_timeout=DAY_S,
        result_backend_transport_options={"visibility_timeout": DAY_S},
        worker_pool="threads",
        worker_concurrency=1,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=settings.broker_url.startswith("redis"),  # Redis alone has it
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
    )
    return app


def _transport(settings: Settings) -> dict[str, Any]:
    if not settings.broker_url.startswith("filesystem"):
        return {"visibility_timeout": DAY_S}
    queue, control = settings.broker_dir / "queue", settings.broker_dir / "control"
    for folder in (queue, control):
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(queue),
        "data_folder_out": str(queue),
        "control_folder": str(control),
        "polling_interval": 0.2,
    }


def _log_as_json(**_: Any) -> None:
    logs.configure(Settings())


def _listen(conf: Any, **_: Any) -> None:
    """Have the worker take hints of what it can run, the rest being for others."""
    queues = dict.fromkeys(queue_of(needs) for needs in serves(gpus_here(Settings())))
    conf.task_queues = [Queue(name) for name in queues]


celeryd_init.connect(_listen)
setup_logging.connect(_log_as_json)  # being connected keeps Celery from installing its own
app = make_app(Settings())
