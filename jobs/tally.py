"""What happened so far, counted in the transaction in which it happens: how attempts ended and how
long they took, and when a relay last swept. Metrics are read from here, so that they are the same
whichever process serves them, and cost the same however many jobs there are.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime

from sqlalchemy import BigInteger, Float, Integer, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from jobs.base import Base
from jobs.rows import change_or_add

LONGER = 2**31 - 1
"""Bound of what took longer than any bound."""
BOUNDS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, LONGER)
"""Durations are counted up to these; seconds."""

SUCCEEDED, REUSED, RELEASED = "succeeded", "reused", "released"
RETRIED, FAILED, CANCELLED = "retried", "failed", "cancelled"
EXPIRED = "expired"
"""A lease that ran out; the attempt that it ends is counted as retried or failed, too."""

RELAY = "relay"


class Tally(Base):
    """Attempts of a stage that ended in one way after at most `le` seconds, and after more than the
    bound before."""

    __tablename__ = "tallies"

    stage: Mapped[str] = mapped_column(String(32), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)
    reason: Mapped[str] = mapped_column(String(32), primary_key=True)
    """A `FailureReason`; empty where nothing failed."""
    le: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    count: Mapped[int] = mapped_column(BigInteger, default=0)
    seconds: Mapped[float] = mapped_column(Float, default=0.0)


class Sign(Base):
    """A sign of life, of all processes of one kind together."""

    __tablename__ = "signs"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    seen_at: Mapped[datetime]


def count(session: Session, stage: str, outcome: str, reason: str = "", seconds: float = 0) -> None:
    """Count one attempt's end. Others wait for its row until the transaction ends, so that nothing
    that they may hold is locked after it."""
    key = {"stage": stage, "outcome": outcome, "reason": reason, "le": bound(seconds)}
    add = {"count": Tally.count + 1, "seconds": Tally.seconds + seconds}
    change_or_add(session, Tally, key, add, {"count": 1, "seconds": seconds})


def bound(seconds: float) -> int:
    """The smallest bound that is not less."""
    return BOUNDS[min(bisect_left(BOUNDS, seconds), len(BOUNDS) - 1)]


def sign(session: Session, name: str, now: datetime) -> None:
    """Give a sign of life."""
    change_or_add(session, Sign, {"name": name}, {"seen_at": now}, {"seen_at": now})


def seen(session: Session, name: str) -> datetime | None:
    """When a sign of life was last given."""
    return session.scalar(select(Sign.seen_at).where(Sign.name == name))
