"""What the API answers. Statuses, event types and reasons may grow."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from eagle3.plan import Plan


class Answer(BaseModel):
    """Base of every answer; a client ignores members it does not know."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StageProgress(Answer):
    """How far a stage is, as its process last said."""

    done: float = 0
    total: float = 0
    unit: str = ""
    rate: float | None = None
    """Units a second."""
    eta_s: float | None = None
    """Seconds to the end of the stage at the present rate; empty while unknown."""
    message: str = ""
    metrics: dict[str, float] = {}
    """Latest value of each metric, such as `train/loss` or `eval/acceptance_length`."""
    step: int | None = None
    """Optimiser step that the metrics belong to."""


class StageView(Answer):
    """One stage of a job."""

    name: str
    position: int
    status: str
    """pending, queued, running, succeeded, failed or cancelled; more may come."""
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


class JobError(Answer):
    """Why a job failed."""

    reason: str
    """bad_input, target_unavailable, out_of_memory, disk_full, worker_lost, timeout, cancelled,
    quality_gate or internal; more may come."""
    message: str
    hint: str = ""
    """What to do about it."""
    stage: str | None = None
    attempt: int | None = None
    retryable: bool = False


class JobView(Answer):
    """A job: one target, one recipe, one draft."""

    id: Annotated[str, Field(examples=["job_01kb8m2v9x3tq7c5"])]
    status: str
    """queued, running, cancelling, succeeded, failed or cancelled; more may come."""
    version: int
    target: str
    recipe: str
    labels: dict[str, str] = {}
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    stages: list[StageView] = []
    error: JobError | None = None
    result: dict[str, Any] | None = None
    """What came out: draft id, measured figures, gates."""
    artifacts: list[str] = []
    """Names that `GET /v1/jobs/{id}/artifacts/{name}` serves."""
    spec: dict[str, Any] = {}
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
    data: dict[str, Any] = {}
    created_at: datetime


class EventPage(Answer):
    """Events in order, oldest first."""

    data: list[EventView]
    has_more: bool


class DraftView(Answer):
    """A trained draft, bound by hashes to the target it was trained for."""

    id: Annotated[str, Field(examples=["dft_01kb8m2v9x3tq7c5"])]
    job_id: str
    name: Annotated[str, Field(examples=["eagle3--HuggingFaceTB--SmolLM2-135M-Instruct"])]
    """Name of the registered model."""
    alias: str
    """candidate, or champion when the job's gates passed; more may come."""
    target: str
    """The reference as the job gave it."""
    target_resolved: str
    """What it was at that moment: a commit or a content hash."""
    weights_sha256: str
    tokenizer_sha256: str
    template_sha256: str
    capture_layers: list[int]
    metrics: dict[str, Any] = {}
    uri: str
    """Where the bundle lies in the object store."""
    manifest_sha256: str
    mlflow_run_id: str | None = None
    mlflow_version: str | None = None
    """Empty until MLflow has taken it."""
    created_at: datetime


class DraftPage(Answer):
    """One page of drafts, newest first."""

    data: list[DraftView]
    has_more: bool
    next: str | None = None


class DraftFile(Answer):
    """One file of a draft's bundle."""

    path: Annotated[str, Field(examples=["draft/model.safetensors"])]
    size: int
    """Bytes."""
    sha256: str


class DraftFiles(Answer):
    """The files of a draft, as its manifest lists them."""

    draft_id: str
    data: list[DraftFile]


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
    unknown: list[str] = []
    """What could not be found out without running, in words."""


class Health(Answer):
    """The process answers."""

    status: str = "ok"
    service: str = "updraft"
    version: str


class Readiness(Answer):
    """Whether what the service leans on answers, part by part."""

    status: str
    checks: dict[str, str]
    """`ok`, or what is wrong, for each of db, store and broker."""


class ProblemError(Answer):
    """One thing wrong with a request."""

    pointer: Annotated[str, Field(examples=["#/overrides/train/epochs"])]
    """JSON pointer into the body; `query/limit` or `header/...` for what is not in the body."""
    detail: str


class Problem(Answer):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str = ""
    request_id: str = ""
    errors: list[ProblemError] = []
