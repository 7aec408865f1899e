"""Where webhooks go, and what was or will be sent there."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Boolean, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from jobs.base import Base, enum, one_of


class DeliveryStatus(StrEnum):
    """`pending`: it will be tried, for the first time or again."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class WebhookEndpoint(Base):
    """A URL that wants to be told of its owner's jobs and drafts."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner: Mapped[str] = mapped_column(String(40), index=True)
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[Any]]
    """Types it wants; empty for all of them."""
    description: Mapped[str] = mapped_column(String(256))
    all_owners: Mapped[bool] = mapped_column(Boolean, default=False)
    """An administrator's: told of everybody's jobs and drafts."""
    version: Mapped[int] = mapped_column(Integer, default=1)
    """Rises with every change (ETag)."""
    secret_generation: Mapped[int] = mapped_column(Integer, default=1)
    """Which signing secret holds; secrets are derived from it and kept nowhere."""
    rotated_at: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    failing_since: Mapped[datetime | None]
    """First failure after the last delivery that went well."""
    created_at: Mapped[datetime]


class WebhookDelivery(Base):
    """One message for one endpoint. Its body is fixed when it is written."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        one_of("status", DeliveryStatus),
        Index(None, "endpoint_id", "id"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sent as `webhook-id`, the same at every attempt."""
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("webhook_endpoints.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(32))
    body: Mapped[str] = mapped_column(Text)
    status: Mapped[DeliveryStatus] = mapped_column(
        enum(DeliveryStatus), default=DeliveryStatus.PENDING
    )
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    next_attempt_at: Mapped[datetime | None]
    response_status: Mapped[int | None] = mapped_column(Integer)
    response: Mapped[str | None] = mapped_column(Text)
    """The beginning of the last answer's body."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why the last attempt failed."""
    created_at: Mapped[datetime]
    attempted_at: Mapped[datetime | None]

    endpoint: Mapped[WebhookEndpoint] = relationship(lazy="raise")
