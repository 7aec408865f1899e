"""The tables. The database is where truth lives; Celery and MLflow hold hints and mirrors of it."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    DateTime,
    Dialect,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from jobs.states import JobStatus, StageStatus

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes; SQLite, which keeps no zone, stores them as naive UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value}; expected one with a time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this name from the class
        datetime: UtcDateTime(),
        dict[str, Any]: Json,
        list[Any]: Json,
    }


class OutboxKind(StrEnum):
    """What an outbox record asks for."""

    HINT = "hint"
    """Tell the workers that a stage waits."""
    MIRROR = "mirror"
    """Copy a draft and its aliases to the model registry."""


class Alias(StrEnum):
    """A draft's standing among the drafts of one registered model and target."""

    CANDIDATE = "candidate"
    CHAMPION = "champion"


def _enum(values: type[StrEnum]) -> Enum:
    """Stored as the value's text; the CHECK constraint of the table says which are allowed."""
    return Enum(
        values, native_enum=False, length=16, values_callable=lambda e: [m.value for m in e]
    )


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    allowed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


class Job(Base):
    """One request for a draft. `version` rises with every change a reader could see (ETag)."""

    __tablename__ = "jobs"
    __table_args__ = (
        _one_of("status", JobStatus),
        Index(None, "status"),
        Index(None, "owner", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    status: Mapped[JobStatus] = mapped_column(_enum(JobStatus))
    version: Mapped[int] = mapped_column(Integer, default=1)
    owner: Mapped[str] = mapped_column(String(40))
    """Id of the API key that submitted it; `local` in embedded mode."""
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
        _one_of("status", StageStatus),
        UniqueConstraint("job_id", "name"),
        Index(None, "status", "not_before"),
        CheckConstraint(
            "(status = 'running') = (lease_token IS NOT NULL)", name="running_has_lease"
        ),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(32))
    position: Mapped[int] = mapped_column(Integer)
    status: Mapped[StageStatus] = mapped_column(_enum(StageStatus))
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """Times a worker has taken it; one that stopped on request gives its attempt back."""
    not_before: Mapped[datetime | None]
    """Earliest time of the next attempt."""
    queued_at: Mapped[datetime | None]
    lease_token: Mapped[str | None] = mapped_column(String(64))
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[datetime | None]
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
        _one_of("kind", OutboxKind),
        Index("ix_outbox_due", "kind", "available_at", postgresql_where=text("sent_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    kind: Mapped[OutboxKind] = mapped_column(_enum(OutboxKind))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
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
    name: Mapped[str] = mapped_column(String(128))
    hint: Mapped[str] = mapped_column(String(16))
    """First characters of the key, to tell keys apart."""
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Draft(Base):
    """A registered draft, bound to the target it was trained for."""

    __tablename__ = "drafts"
    __table_args__ = (
        _one_of("alias", Alias),
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
    alias: Mapped[Alias] = mapped_column(_enum(Alias))
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
    created_at: Mapped[datetime]


class Worker(Base):
    """A worker process and when it last said it was there; liveness is read from here."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]
