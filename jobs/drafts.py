"""Drafts in the database: registering, finding and choosing them.

Among the drafts of one registered name for one target (the same weights) one is `champion`, one
`previous`, the rest are candidates. Every change asks for the mirror, and tells webhooks.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from jobs.errors import Conflict, NotFound
from jobs.models import Alias, Draft
from jobs.outbox import enqueue_mirror
from jobs.webhooks import announce


def add_draft(session: Session, draft: Draft, *, champion: bool, now: datetime) -> Draft:
    """Write a draft and its mirror record; a champion takes the place of the former one.

    A job has one draft: a second call for the same job returns the first draft unchanged.
    """
    earlier = session.scalars(select(Draft).where(Draft.job_id == draft.job_id)).one_or_none()
    if earlier is not None:
        return earlier
    draft.alias = Alias.CANDIDATE
    session.add(draft)
    session.flush()
    if champion:
        _crown(session, draft)
    _tell(session, draft, "draft.registered", now)
    return draft


def get_draft(session: Session, ref: str, *, owner: str | None = None) -> Draft:
    """A draft by its id or its job's, by registered name (its champion, else its newest that is
    not deprecated), by `name@alias`, or by `name@for-<first 12 of the checkpoint's hash>`.

    Raises:
        NotFound: nothing of that name.
    """
    name, _, alias = ref.partition("@")
    by_id = (Draft.id == name) | (Draft.job_id == name)
    query = select(Draft).where(by_id | and_(Draft.name == name, Draft.deprecated_at.is_(None)))
    if owner is not None:
        query = query.where(Draft.owner == owner)
    if alias.startswith("for-"):
        query = query.where(_is_for(alias.removeprefix("for-")))
    elif alias:
        query = query.where(Draft.alias == alias)
    champion_first = (Draft.alias == Alias.CHAMPION).desc()
    draft = session.scalars(query.order_by(champion_first, Draft.id.desc()).limit(1)).first()
    if draft is None:
        raise NotFound(f"no draft {ref!r}; list them with GET /v1/drafts or `updraft drafts`")
    return draft


def lock_rivals(session: Session, draft: Draft) -> Draft:
    """The draft as it is, locked together with all that it shares name and target with."""
    rivals = select(Draft).where(_same(draft)).order_by(Draft.id).with_for_update()
    session.scalars(rivals.execution_options(populate_existing=True)).all()
    return draft


def promote(session: Session, draft: Draft, *, now: datetime) -> Draft:
    """Make a draft champion; the former one is `previous` from then on. A champion stays one.

    Raises:
        Conflict: it is deprecated.
    """
    lock_rivals(session, draft)
    if draft.deprecated_at is not None:
        raise Conflict(f"draft {draft.id} is deprecated: {draft.deprecation}; reinstate it first")
    if draft.alias != Alias.CHAMPION:
        _crown(session, draft)
        _tell(session, draft, "draft.promoted", now)
    return draft


def roll_back(session: Session, draft: Draft, *, now: datetime) -> Draft:
    """Make `previous` champion again, and the champion `previous`. Returns the one that is champion
    now.

    Args:
        draft: any of the drafts with that name and target.

    Raises:
        Conflict: there is no previous one, or it is deprecated.
    """
    lock_rivals(session, draft)
    former = holder(session, draft, Alias.PREVIOUS)
    if former is None:
        raise Conflict(f"no draft of {draft.name} was champion before for this target")
    if former.deprecated_at is not None:
        raise Conflict(f"the previous champion, {former.id}, is deprecated: {former.deprecation}")
    _crown(session, former)
    _tell(session, former, "draft.rolled_back", now)
    return former


def attach(session: Session, draft: Draft, *, now: datetime) -> None:
    """Say that a draft is the one for its target's revision, champion or not."""
    draft.attached_at = draft.attached_at or now
    _tell(session, draft, "draft.attached", now)


def deprecate(session: Session, draft: Draft, reason: str, *, now: datetime) -> Draft:
    """Say that a draft should not be used; names no longer lead to it.

    Raises:
        Conflict: it is champion.
    """
    lock_rivals(session, draft)
    if draft.alias == Alias.CHAMPION:
        raise Conflict(f"draft {draft.id} is champion; promote another one first, or roll back")
    draft.deprecated_at, draft.deprecation = draft.deprecated_at or now, reason
    _tell(session, draft, "draft.deprecated", now)
    return draft


def reinstate(session: Session, draft: Draft, *, now: datetime) -> Draft:
    """Take a deprecation back."""
    lock_rivals(session, draft)
    if draft.deprecated_at is not None:
        draft.deprecated_at = draft.deprecation = None
        _tell(session, draft, "draft.reinstated", now)
    return draft


def champions(session: Session, drafts: list[Draft]) -> dict[str, str]:
    """By draft, the champion for the same name and target, where there is one."""
    names = {draft.name for draft in drafts}
    query = select(Draft).where(Draft.alias == Alias.CHAMPION, Draft.name.in_(names))
    found = {(one.name, one.weights_sha256): one.id for one in session.scalars(query)}
    by_draft = {draft.id: found.get((draft.name, draft.weights_sha256)) for draft in drafts}
    return {draft: champion for draft, champion in by_draft.items() if champion is not None}


def holder(session: Session, draft: Draft, alias: Alias) -> Draft | None:
    """Which of the drafts with a draft's name and target has an alias."""
    return session.scalars(select(Draft).where(_same(draft), Draft.alias == alias)).one_or_none()


def _crown(session: Session, draft: Draft) -> None:
    """Move the aliases. One statement at a time: the table allows one champion at any moment."""
    champion = holder(session, draft, Alias.CHAMPION)
    previous = holder(session, draft, Alias.PREVIOUS)
    if champion is not None:
        if previous is not None:
            previous.alias = Alias.CANDIDATE
        champion.alias = Alias.PREVIOUS
    session.flush()
    draft.alias = Alias.CHAMPION
    session.flush()


def _is_for(revision: str) -> ColumnElement[bool]:
    """Attached to, or champion for, the checkpoint whose weights' hash or commit starts so."""
    chosen = or_(Draft.attached_at.is_not(None), Draft.alias == Alias.CHAMPION)
    weights = Draft.weights_sha256.startswith(revision, autoescape=True)
    return and_(
        chosen, or_(weights, Draft.target_resolved.contains(f"@{revision}", autoescape=True))
    )


def _same(draft: Draft) -> ColumnElement[bool]:
    return and_(Draft.name == draft.name, Draft.weights_sha256 == draft.weights_sha256)


def _tell(session: Session, draft: Draft, type: str, now: datetime) -> None:
    enqueue_mirror(session, draft.job_id, draft.id, now)
    data = {
        "draft_id": draft.id,
        "job_id": draft.job_id,
        "name": draft.name,
        "alias": draft.alias.value,
        "target": draft.target_resolved,
    }
    announce(session, type, draft.owner, data, job_id=draft.job_id, now=now)
