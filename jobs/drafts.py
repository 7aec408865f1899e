"""Registering a draft in the database: the act that decides candidate and champion."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.models import Alias, Draft
from jobs.outbox import enqueue_mirror


def add_draft(session: Session, draft: Draft, *, champion: bool, now: datetime) -> Draft:
    """Write a draft and its mirror record; a champion takes the place of the former one.

    A job has one draft: a second call for the same job returns the first draft unchanged.
    """
    earlier = session.scalars(select(Draft).where(Draft.job_id == draft.job_id)).one_or_none()
    if earlier is not None:
        return earlier
    if champion:
        session.execute(
            update(Draft)
            .where(
                Draft.name == draft.name,
                Draft.weights_sha256 == draft.weights_sha256,
                Draft.alias == Alias.CHAMPION,
            )
            .values(alias=Alias.CANDIDATE)
        )
    draft.alias = Alias.CHAMPION if champion else Alias.CANDIDATE
    session.add(draft)
    session.flush()
    enqueue_mirror(session, draft.job_id, draft.id, now)
    return draft
