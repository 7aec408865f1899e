"""What webhooks tell of. Apart from the tables, so that a client needs no database to know it."""

from __future__ import annotations

from typing import Literal, get_args

JobEventType = Literal[
    "job.queued",
    "job.waiting",
    "job.paused",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
]
EventType = Literal[
    JobEventType,
    "draft.registered",
    "draft.promoted",
    "draft.attached",
    "draft.drifted",
    "draft.rolled_back",
    "draft.deprecated",
    "draft.reinstated",
]
JOB_EVENTS = get_args(JobEventType)
