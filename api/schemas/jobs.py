"""What the API answers about jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, model_validator

from api.schemas.base import Answer, Body
from eagle3.plan import Plan


class Kept(Answer):
    """What a row keeps as one document, in which null is as good as left out."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, kept: Any) -> Any:
        return {k: v for k, v in kept.items() if v is not None} if isinstance(kept, dict) else kept


class StageProgress(Kept):
    """How far a stage is, as its process last said."""

    done: float = 0
    total: float = 0
    unit: str = ""
    rate: float | None = None
    """Units a second."""
    eta_s: float | None = None
    """Seconds to the end of the stage at the present rate; empty while unknown."""
    message: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Latest value of each metric, such as `train/loss` or `eval/acceptance_length`."""
    step: int | None = None
    """Optimiser step that the metrics belong to."""


class StageView(Answer):
    """One stage of a job."""

    name: str
    position: int
    status: str
    """pending, queued, running, succeeded, failed or cancelled; more may come."""
    needs: str = "any"
    """What a worker must have to run it: any, cpu, gpu, gpu:h100x8, …"""
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None
    """What the stage's own process took, at its last attempt."""
    progress: StageProgress | None = None
    summary: dict[str, Any] | None = None
    """What the stage measured or made."""
    digest: str | None = None
    """Hash of the stage's inputs and config; its outputs lie under it in the object store."""
    error: dict[str, Any] | None = None


class JobError(Kept):
    """Why a job failed."""

    reason: str
    """bad_input, target_unavailable, out_of_memory, disk_full, engine_failed, worker_lost, timeout,
    cancelled, quality_gate or internal; more may come."""
    message: str
    hint: str = ""
    """What to do about it."""
    stage: str | None = None
    attempt: int | None = None
    retryable: bool = False
    support_id: str | None = None
    """What to name when asking the operator about it: it is in their log."""


class JobView(Answer):
    """A job: one target, one recipe, one draft."""

    id: Annotated[str, Field(examples=["job_01kb8m2v9x3tq7c5"])]
    status: str
    """queued, running, pausing, paused, cancelling, succeeded, failed or cancelled; more may
    come."""
    version: int
    """Rises with every change but that of progress."""
    priority: int = 0
    """Higher goes first."""
    waiting: str | None = None
    """Why nothing runs it, where it is not simply the turn of others."""
    target: str
    recipe: str
    labels: dict[str, str] = Field(default_factory=dict)
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    stages: list[StageView] = Field(default_factory=list)
    error: JobError | None = None
    result: dict[str, Any] | None = None
    """What came out: draft id, measured figures, gates."""
    artifacts: list[str] = Field(default_factory=list)
    """Names that `GET /v1/jobs/{id}/artifacts/{name}` serves."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """The job as it was submitted, defaults filled in."""


class JobPage(Answer):
    """One page of jobs, newest first."""

    data: list[JobView]
    has_more: bool
    next: str | None = None
    """Cursor for `after`; empty on the last page."""


class EventView(Answer):
    """Something that happened to a job. `seq` counts from 1 without gaps."""

    seq: int
    type: Annotated[str, Field(examples=["job.queued"])]
    level: str
    message: str
    data: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime


class EventPage(Answer):
    """Events in order, oldest first."""

    data: list[EventView]
    has_more: bool


class Validation(Answer):
    """What a submission would do, without doing it."""

    target: str
    recipe: dict[str, Any]
    """The recipe with the job's overrides applied."""
    stages: list[str]
    model_name: str
    """Name that the draft would be registered under."""
    plan: Plan | None = None
    """Sizes, memory, hours and money; empty when `unknown` says what is missing for one."""
    unknown: list[str] = Field(default_factory=list)
    """What could not be found out without running, in words."""


class PriorityBody(Body):
    """A job's new priority."""

    priority: Annotated[int, Field(ge=-100, le=100)]
    """Higher goes first."""


class CheckpointView(Answer):
    """A checkpoint that a stage has announced."""

    stage: str
    step: int
    created_at: datetime
    size: int | None = None
    """Bytes; empty for one of an earlier version of the service."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Latest values of the stage's metrics when it was written."""
    resumable: bool
    """Whether another attempt can go on from it: older ones make room for newer ones."""


class CheckpointList(Answer):
    """Checkpoints, oldest first."""

    data: list[CheckpointView]


class MetricPoint(Answer):
    """One value of a metric."""

    step: int
    value: float
    at: datetime
    """When it was measured."""


class MetricSeries(Answer):
    """The values of one metric in the order in which they came."""

    name: Annotated[str, Field(examples=["train/loss"])]
    stage: str
    points: list[MetricPoint]


class MetricList(Answer):
    """Series of a job, by stage and name."""

    data: list[MetricSeries]
    down_sampled: bool
    """Whether points were left out to keep to `points` a series."""


class StoredFile(Answer):
    """A file that a job left in the object store."""

    name: Annotated[str, Field(examples=["report.html"])]


class StoredFiles(Answer):
    """Files of a job, by name."""

    data: list[StoredFile]


class DownloadUrl(Answer):
    """A link that needs no key."""

    url: str
    """Of the store; where that gives out no links, a path of this API, which asks for the key."""
    expires_at: datetime | None = None
    """At most 15 minutes from now; empty for a link of this API."""
