"""Drafts in the database: registering one, which decides candidate and champion, and finding it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.errors import NotFound
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


def get_draft(session: Session, ref: str, *, owner: str | None = None) -> Draft:
    """A draft by its id or its job's, by registered name (its champion, else its newest), or by
    `name@alias`.

    Raises:
        NotFound: nothing of that name.
    """
    name, _, alias = ref.partition("@")
    query = select(Draft).where((Draft.id == name) | (Draft.name == name) | (Draft.job_id == name))
    if owner is not None:
        query = query.where(Draft.owner == owner)
    if alias:
        query = query.where(Draft.alias == alias)
    champion_first = (Draft.alias == Alias.CHAMPION).desc()
    draft = session.scalars(query.order_by(champion_first, Draft.id.desc()).limit(1)).first()
    if draft is None:
        raise NotFound(f"no draft {ref!r}; list them with GET /v1/drafts or `updraft drafts`")
    return draft
