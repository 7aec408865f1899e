"""The tables. The database is where truth lives; Celery and MLflow hold hints and mirrors of it."""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Date,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from jobs.base import Base, enum, one_of
from jobs.needs import ANY
from jobs.states import JobStatus, StageStatus


class OutboxKind(StrEnum):
    """What an outbox record asks for."""

    HINT = "hint"
    """Tell the workers that a stage waits."""
    MIRROR = "mirror"
    """Copy a draft and its aliases to the model registry."""
    WEBHOOK = "webhook"
    """Try to deliver a webhook once."""


class Alias(StrEnum):
    """A draft's standing among the drafts of one registered model and target."""

    CANDIDATE = "candidate"
    CHAMPION = "champion"
    PREVIOUS = "previous"
    """Champion before the present one: what a rollback goes back to."""


class Job(Base):
    """One request for a draft. `version` rises with every change a reader could see (ETag)."""

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("status", JobStatus),
        Index(None, "status"),
        Index(None, "owner", "id"),
        Index(None, "owner", "status", "id"),
        Index(None, "target", "id"),
        Index(None, "labels", postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"}),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    status: Mapped[JobStatus] = mapped_column(enum(JobStatus))
    version: Mapped[int] = mapped_column(Integer, default=1)
    owner: Mapped[str] = mapped_column(String(40))
    """Id of the API key that submitted it; `local` in embedded mode."""
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """Higher goes first."""
    waiting: Mapped[str | None] = mapped_column(Text)
    """Why nothing runs it, where it is not simply the turn of others."""
    target: Mapped[str] = mapped_column(Text)
    recipe: Mapped[str] = mapped_column(String(64))
    spec: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, Any]]
    error: Mapped[dict[str, Any] | None]
    """`{reason, message, hint, stage, attempt, retryable}` of a failed job."""
    result: Mapped[dict[str, Any] | None]
    """`{draft_id, uri, metrics, gates, artifacts: {name: store key}}` once registered."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    event_seq: Mapped[int] = mapped_column(Integer, default=0)
    """Number of the last event."""
    mirrored_seq: Mapped[int] = mapped_column(Integer, default=0)
    """Number of the last event whose metrics have reached the model registry."""
    mlflow_run_id: Mapped[str | None] = mapped_column(String(64))

    stages: Mapped[list[Stage]] = relationship(
        back_populates="job", order_by="Stage.position", lazy="raise"
    )


class Stage(Base):
    """One stage of a job, and the lease of the worker that runs it."""

    __tablename__ = "stages"
    __table_args__ = (
        one_of("status", StageStatus),
        UniqueConstraint("job_id", "name"),
        Index(None, "status", "needs", "job_id"),
        CheckConstraint(
            "(status = 'running') = (lease_token IS NOT NULL)", name="running_has_lease"
        ),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(32))
    position: Mapped[int] = mapped_column(Integer)
    status: Mapped[StageStatus] = mapped_column(enum(StageStatus))
    needs: Mapped[str] = mapped_column(String(48), default=ANY, server_default=ANY)
    """What a worker must have to run it, as `jobs.needs` writes it."""
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """Times a worker has taken it; one that stopped on request gives its attempt back."""
    not_before: Mapped[datetime | None]
    """Earliest time of the next attempt."""
    queued_at: Mapped[datetime | None]
    lease_token: Mapped[str | None] = mapped_column(String(64))
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[datetime | None]
    gpus: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """How many GPUs the worker that holds it gives it."""
    progress: Mapped[dict[str, Any] | None]
    """`{done, total, unit, rate, eta_s, message, step, metrics}`, all but the first three empty at
    times."""
    summary: Mapped[dict[str, Any] | None]
    checkpoint: Mapped[dict[str, Any] | None]
    """`{step, path, uri}`: where another worker can go on from."""
    digest: Mapped[str | None] = mapped_column(String(64))
    uri: Mapped[str | None] = mapped_column(Text)
    """Store prefix of the outputs."""
    seconds: Mapped[float | None]
    leased_seconds: Mapped[float] = mapped_column(Float, default=0.0, server_default="0")
    """Time that workers have held it, all attempts together; its time limit is on this."""
    error: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    job: Mapped[Job] = relationship(back_populates="stages", lazy="raise")


class JobEvent(Base):
    """What happened, append-only; `seq` counts from 1 without a gap within a job."""

    __tablename__ = "job_events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    type: Mapped[str] = mapped_column(String(32))
    level: Mapped[str] = mapped_column(String(8))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Outbox(Base):
    """Something to tell another system, written in the transaction that made it true."""

    __tablename__ = "outbox"
    __table_args__ = (
        one_of("kind", OutboxKind),
        Index("ix_outbox_due", "kind", "available_at", postgresql_where=text("sent_at IS NULL")),
        Index(None, "job_id"),
        Index(None, "sent_at"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    kind: Mapped[OutboxKind] = mapped_column(enum(OutboxKind))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    """The job it is about, if any."""
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    available_at: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    sent_at: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(Text)


class IdempotencyRecord(Base):
    """A submission that was made under a key, so that a repeat returns the same job."""

    __tablename__ = "idempotency_records"

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    created_at: Mapped[datetime]


class ApiKey(Base):
    """A key that may call the API. Only the hash of the secret is kept."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner: Mapped[str] = mapped_column(String(40), index=True)
    """Whose jobs it makes and sees: its own id, or that of the key it was rotated from."""
    name: Mapped[str] = mapped_column(String(128))
    hint: Mapped[str] = mapped_column(String(16))
    """First characters of the key, to tell keys apart."""
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Any]]
    idempotency_required: Mapped[bool] = mapped_column(
        Boolean, default=False, server_default=false()
    )
    """A program's key: what it submits must carry an idempotency key."""
    hub_token: Mapped[str | None] = mapped_column(Text)
    """Token of a model hub for its owner's jobs, as `jobs.hub_tokens` encrypts it."""
    hub_token_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Draft(Base):
    """A registered draft, bound to the target it was trained for."""

    __tablename__ = "drafts"
    __table_args__ = (
        one_of("alias", Alias),
        Index(None, "name", "weights_sha256"),
        Index(
            "uq_drafts_champion",
            "name",
            "weights_sha256",
            unique=True,
            sqlite_where=text("alias = 'champion'"),
            postgresql_where=text("alias = 'champion'"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), unique=True)
    owner: Mapped[str] = mapped_column(String(40))
    name: Mapped[str] = mapped_column(String(256))
    """Registered-model name."""
    alias: Mapped[Alias] = mapped_column(enum(Alias))
    target: Mapped[str] = mapped_column(Text)
    target_resolved: Mapped[str] = mapped_column(Text)
    weights_sha256: Mapped[str] = mapped_column(String(64))
    tokenizer_sha256: Mapped[str] = mapped_column(String(64))
    template_sha256: Mapped[str] = mapped_column(String(64))
    capture_layers: Mapped[list[Any]]
    metrics: Mapped[dict[str, Any]]
    """`{tau, speedup, speedup_ci, acceptance_length, lossless, …}`."""
    uri: Mapped[str] = mapped_column(Text)
    """Store prefix of the bundle; its `manifest.json` lists every file with size and SHA-256."""
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    mlflow_run_id: Mapped[str | None] = mapped_column(String(64))
    mlflow_version: Mapped[str | None] = mapped_column(String(32))
    deprecated_at: Mapped[datetime | None]
    deprecation: Mapped[str | None] = mapped_column(Text)
    """Why it should not be used."""
    attached_at: Mapped[datetime | None]
    """When an attachment's gates held: it has the alias `for-<revision>`, champion or not."""
    drift: Mapped[dict[str, Any] | None]
    """Where it accepts less than it was registered with: what was observed, and the job that
    retrains it."""
    created_at: Mapped[datetime]


class Worker(Base):
    """A worker process and when it last said it was there; liveness is read from here."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    has: Mapped[str] = mapped_column(String(48), default="cpu", server_default="cpu")
    """The most that it can offer: `cpu`, or `gpu:h100x8`."""


class Output(Base):
    """A stage's outputs in the object store, by content: who made them, and when somebody last
    needed them. The row is written before the first byte, and outlives the last one."""

    __tablename__ = "outputs"
    __table_args__ = (Index(None, "stage", "digest"), Index(None, "owner"))

    prefix: Mapped[str] = mapped_column(String(255), primary_key=True)
    stage: Mapped[str] = mapped_column(String(32))
    digest: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(40))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]
    complete: Mapped[bool] = mapped_column(Boolean, default=False)
    """All files are there, the manifest too."""
    deleting: Mapped[bool] = mapped_column(Boolean, default=False)
    """Being removed: nobody may start to use it, nor write there until the row is gone."""


class Attachment(Base):
    """A checkpoint that is to get its draft, and what was decided about it. How far it is, its job
    says."""

    __tablename__ = "attachments"
    __table_args__ = (Index(None, "owner", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    owner: Mapped[str] = mapped_column(String(40))
    fingerprint: Mapped[dict[str, Any] | None]
    """The checkpoint's sizes and hashes, once it was probed."""
    decision: Mapped[dict[str, Any] | None]
    """A `jobs.attach_decision.Decision`, once it was taken."""
    created_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]


class Evaluation(Base):
    """A registered draft that is measured again. How far it is, its job says."""

    __tablename__ = "evaluations"
    __table_args__ = (Index(None, "draft_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    draft_id: Mapped[str] = mapped_column(ForeignKey("drafts.id", ondelete="CASCADE"))
    against_id: Mapped[str | None] = mapped_column(String(40))
    """The draft that was measured beside it."""
    result: Mapped[dict[str, Any] | None]
    """As `jobs.evaluations.result_of` writes it, once it was measured."""
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class MirrorClaim(Base):
    """What a relay copies to the model registry just now (`jobs.mirror_claims`)."""

    __tablename__ = "mirror_claims"

    thing: Mapped[str] = mapped_column(String(300), primary_key=True)
    token: Mapped[str] = mapped_column(String(16))
    until: Mapped[datetime]


class Observation(Base):
    """What a serving engine counted of a draft since the observation before."""

    __tablename__ = "observations"
    __table_args__ = (Index(None, "draft_id", "source", "id"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    draft_id: Mapped[str] = mapped_column(ForeignKey("drafts.id", ondelete="CASCADE"))
    source: Mapped[str] = mapped_column(String(128))
    """The engine's process that counted."""
    rounds: Mapped[int] = mapped_column(BigInteger)
    accepted: Mapped[int] = mapped_column(BigInteger)
    accepted_at: Mapped[list[Any]]
    """Rounds in which the first 1, 2, … drafted tokens were accepted; empty where not counted."""
    counters: Mapped[dict[str, Any]]
    """The engine's own counters, which only rise while it runs."""
    created_at: Mapped[datetime]


class Usage(Base):
    """What an owner's stages have taken of the workers on one UTC day."""

    __tablename__ = "usage"

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    seconds: Mapped[float] = mapped_column(Float, default=0.0)
    gpu_seconds: Mapped[float] = mapped_column(Float, default=0.0)


class Quota(Base):
    """What one owner may take, where it differs from the settings; an empty column does not."""

    __tablename__ = "quotas"

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    max_active: Mapped[int | None] = mapped_column(Integer)
    max_running: Mapped[int | None] = mapped_column(Integer)
    gpu_hours_per_day: Mapped[float | None] = mapped_column(Float)
    storage_gb: Mapped[float | None] = mapped_column(Float)
    max_priority: Mapped[int | None] = mapped_column(Integer)
