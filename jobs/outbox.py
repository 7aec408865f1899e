"""The transactional outbox: a record is written with the change it announces, and sent after.

Sending takes three steps, so that no network call happens inside a transaction: take a few due
records (they become due again in a minute, should the sender die), send them, mark them sent. A
crash in between sends twice; receivers absorb that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.models import Outbox, OutboxKind
from jobs.rows import add_rows

TAKEN = timedelta(seconds=60)
BACKOFF_BASE_S = 2.0
BACKOFF_CAP_S = 300.0
KEEP_SENT = timedelta(days=7)


def enqueue_hint(
    session: Session,
    job_id: str,
    stage: str,
    needs: str,
    now: datetime,
    due: datetime | None = None,
) -> None:
    """Announce to the workers that have what it needs that a stage waits, or will from `due` on."""
    _enqueue(session, OutboxKind.HINT, job_id, {"stage": stage, "needs": needs}, now, due)


def enqueue_mirror(session: Session, job_id: str, draft_id: str, now: datetime) -> None:
    """Ask for a draft and its aliases to be copied to the model registry."""
    _enqueue(session, OutboxKind.MIRROR, job_id, {"draft_id": draft_id}, now)


def enqueue_webhook(
    session: Session,
    delivery_id: str,
    now: datetime,
    *,
    job_id: str | None = None,
    due: datetime | None = None,
) -> None:
    """Ask for one attempt to deliver a webhook, now or from `due` on."""
    _enqueue(session, OutboxKind.WEBHOOK, job_id, {"delivery_id": delivery_id}, now, due)


def relay(
    db: Database,
    kind: OutboxKind,
    send: Callable[[Outbox], None],
    *,
    clock: Callable[[], datetime],
    limit: int = 20,
) -> int:
    """Send the due records of one kind; several relays may run at once on PostgreSQL.

    A record whose `send` raises is tried again later, for ever, with growing waits.

    Returns:
        How many were sent.
    """
    sent = []
    for record in _take(db, kind, clock(), limit):
        try:
            send(record)
        except Exception as e:  # the sender's library may raise anything; kept on the record
            _put_back(db, record, f"{type(e).__name__}: {e}"[:1000], clock())
        else:
            sent.append(record.id)
    if sent:
        _mark_sent(db, sent, clock())
    return len(sent)


def forget_sent(session: Session, now: datetime) -> None:
    """Drop records sent more than a week ago."""
    session.execute(delete(Outbox).where(Outbox.sent_at < now - KEEP_SENT))


def _enqueue(
    session: Session,
    kind: OutboxKind,
    job_id: str | None,
    payload: dict[str, str],
    now: datetime,
    due: datetime | None = None,
) -> None:
    record = Outbox(
        kind=kind,
        job_id=job_id,
        payload=payload,
        created_at=now,
        available_at=due or now,
        attempts=0,
    )
    add_rows(session, record)


def _take(db: Database, kind: OutboxKind, now: datetime, limit: int) -> list[Outbox]:
    due = (
        select(Outbox)
        .where(Outbox.kind == kind, Outbox.sent_at.is_(None), Outbox.available_at <= now)
        .order_by(Outbox.id)
        .limit(limit)
    )
    with db.read() as session:  # an idle relay takes no write lock
        if session.scalars(due.limit(1)).first() is None:
            return []
    with db.write() as session:
        records = list(session.scalars(due.with_for_update(skip_locked=True)))
        for record in records:
            record.available_at = now + TAKEN
            record.attempts += 1
        return records


def _mark_sent(db: Database, record_ids: list[int], now: datetime) -> None:
    marked = update(Outbox).where(Outbox.id.in_(record_ids)).values(sent_at=now, last_error=None)
    with db.write() as session:
        session.execute(marked)


def _put_back(db: Database, record: Outbox, error: str, now: datetime) -> None:
    wait = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** min(record.attempts - 1, 10))
    wait *= random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret
    with db.write() as session:
        session.execute(
            update(Outbox)
            .where(Outbox.id == record.id)
            .values(available_at=now + timedelta(seconds=wait), last_error=error)
        )
