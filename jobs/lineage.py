"""The registered draft that a job's training goes on from: its parent.

A job may name it by what moves, `draft:NAME` or `draft:NAME@champion`. It is looked up once, when
the job is submitted; what is stored, and so what every attempt uses, is `draft:ID`.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from eagle3.plan import TargetShape
from jobs.drafts import get_draft
from jobs.errors import InvalidSpec, NotFound
from jobs.models import Draft, Job, Stage
from jobs.spec import JobSpec

FIELD = "overrides.train.start_from"
PREFIX = "draft:"
SIZES = {"hidden size": "hidden_size", "vocabulary": "vocab_size"}
"""What a draft shares with its target, and a target's facts call it."""


def parent_of(spec: JobSpec) -> str | None:
    """What a job's spec calls its parent: an id, once the job is submitted."""
    named = spec.resolved_recipe().train.start_from
    if named is None or not named.startswith(PREFIX):
        return None
    return named.removeprefix(PREFIX)


def parent_tag(spec: JobSpec) -> dict[str, str]:
    """What bundle, run and version say of a parent; nothing where there is none."""
    parent = parent_of(spec)
    return {} if parent is None else {"parent_draft": parent}


def find_parent(session: Session, spec: JobSpec, owner: str | None) -> Draft:
    """The draft that a job's spec goes on from.

    Args:
        owner: whose drafts may be used; everybody's when None.

    Raises:
        InvalidSpec: there is none of that name; of a job that has none, says how that job stands.
    """
    ref = parent_of(spec) or ""
    try:
        return get_draft(session, ref, owner=owner)
    except NotFound:
        detail = f"no draft {ref!r} among those you may use; `updraft drafts` lists them"
    query = select(Job.status).where(Job.id == ref)
    status = session.scalar(query if owner is None else query.where(Job.owner == owner))
    if status is not None:
        wait = "" if status.terminal else "; wait until it has succeeded"
        detail = f"job {ref} is {status} and has registered no draft{wait}"
    raise InvalidSpec([{"pointer": FIELD, "detail": detail}])


def with_parent(spec: JobSpec, draft: Draft) -> JobSpec:
    """The spec with its parent named by id."""
    train = {**spec.overrides.get("train", {}), "start_from": PREFIX + draft.id}
    return spec.model_copy(update={"overrides": {**spec.overrides, "train": train}})


def check_sizes(session: Session, parent: Draft, target: TargetShape | None) -> list[str]:
    """Refuse a parent that was made for a target of other sizes. Another checkpoint of the same
    sizes is what one goes on for. Returns in words what could not be compared.

    Raises:
        InvalidSpec: says what differs.
    """
    query = select(Stage.summary).where(Stage.job_id == parent.job_id, Stage.name == "resolve")
    facts = session.scalar(query) or {}
    there = {name: facts.get(key) for name, key in SIZES.items()}
    if target is None or None in there.values():
        return [f"whether draft {parent.id} fits the target: the stage resolve finds out"]
    here = {name: getattr(target, key) for name, key in SIZES.items()}
    differing = [
        f"{name} {there[name]} where this target has {here[name]}"
        for name in SIZES
        if there[name] != here[name]
    ]
    if differing:
        detail = f"draft {parent.id} was made for {parent.target_resolved}: {', '.join(differing)}"
        raise InvalidSpec([{"pointer": FIELD, "detail": detail}])
    return []
