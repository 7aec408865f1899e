"""Who copies a thing to the model registry, so that several relays make no two of it.

MLflow has no key that would refuse a second run or version: whoever makes one looks first and makes
it then, and between the two nobody else may look. A claim is a row; that it is there is the lock,
on SQLite and PostgreSQL alike, and no connection is held while MLflow is asked.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import delete, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jobs.db import Database
from jobs.errors import Claimed
from jobs.models import MirrorClaim

HELD = timedelta(seconds=45)
"""How long a claim outlives whoever holds it: less than the outbox waits for a dead sender."""
RENEWED_S = 10.0

log = logging.getLogger(__name__)


@contextmanager
def claimed(
    db: Database, thing: str, clock: Callable[[], datetime]
) -> Iterator[Callable[[], None]]:
    """Hold the claim on a thing while the block runs, however long MLflow takes. Yields what makes
    sure of it, to be called before something is made.

    Raises:
        Claimed: another one holds it; while the block runs, that it was lost to another one.
    """
    token = _take(db, thing, clock())
    over = threading.Event()

    def hold() -> None:
        _renew(db, thing, token, clock())

    beat = threading.Thread(target=_beat, args=(hold, over), daemon=True)
    beat.start()
    try:
        yield hold
    finally:
        over.set()
        beat.join()
        with db.write() as session:
            session.execute(
                delete(MirrorClaim).where(MirrorClaim.thing == thing, MirrorClaim.token == token)
            )


def _take(db: Database, thing: str, now: datetime) -> str:
    token = secrets.token_hex(8)
    try:
        with db.write() as session:
            left = (MirrorClaim.thing == thing, MirrorClaim.until <= now)
            session.execute(delete(MirrorClaim).where(*left))
            session.add(MirrorClaim(thing=thing, token=token, until=now + HELD))
    except IntegrityError:
        raise Claimed(f"another relay copies {thing}") from None
    return token


def _renew(db: Database, thing: str, token: str, now: datetime) -> None:
    mine = (MirrorClaim.thing == thing, MirrorClaim.token == token)
    longer = update(MirrorClaim).where(*mine).values(until=now + HELD)
    with db.write() as session:
        kept = session.execute(longer.returning(MirrorClaim.thing)).all()
    if not kept:
        raise Claimed(f"another relay took {thing} over: it was not heard of for {HELD}")


def _beat(hold: Callable[[], None], over: threading.Event) -> None:
    while not over.wait(RENEWED_S):
        try:
            hold()
        except Claimed:
            return  # the holder finds out before it makes anything
        except SQLAlchemyError as e:
            log.warning("claim not renewed: %s", type(e).__name__)
