"""What serving engines observe of a draft, and what follows where it has drifted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.attach_policy import DriftPolicy
from jobs.drafts import lock_rivals
from jobs.drift import Counted, Verdict, judge, total
from jobs.errors import QuotaExceeded
from jobs.lineage import with_parent
from jobs.models import Draft, Job, Observation
from jobs.service import submit
from jobs.settings import Settings
from jobs.spec import JobSpec
from jobs.webhooks import announce


def observe(
    session: Session,
    draft: Draft,
    source: str,
    counters: Counted,
    *,
    settings: Settings,
    now: datetime,
) -> tuple[Observation, Verdict | None]:
    """Take in an engine's counters, and act where the draft has drifted: say so, and by its policy
    submit a job that goes on from it. It is said once; a draft that recovers is not marked any
    more.

    Args:
        source: the engine's process. Its counters only rise; where they have fallen it was started
            anew.
    """
    lock_rivals(session, draft)
    row = _since_last(session, draft, source, counters, now)
    spec = JobSpec.model_validate(session.get_one(Job, draft.job_id).spec)
    policy = spec.attach.drift if spec.attach is not None else DriftPolicy()
    verdict = judge(_window(session, draft, policy, now), draft.metrics, policy)
    if verdict is None:
        return row, None
    if verdict.drifted and draft.drift is None:
        _say(session, draft, spec, policy, verdict, settings, now)
    elif not verdict.drifted and draft.drift is not None and "job_id" not in draft.drift:
        draft.drift = None
    session.flush()
    return row, verdict


def _since_last(
    session: Session, draft: Draft, source: str, counters: Counted, now: datetime
) -> Observation:
    query = (
        select(Observation.counters)
        .where(Observation.draft_id == draft.id, Observation.source == source)
        .order_by(Observation.id.desc())
        .limit(1)
    )
    seen = session.scalar(query)
    new = counters if seen is None else _difference(counters, seen)
    row = Observation(
        draft_id=draft.id,
        source=source,
        rounds=new.rounds,
        accepted=new.accepted,
        accepted_at=list(new.accepted_at),
        counters={
            "rounds": counters.rounds,
            "accepted": counters.accepted,
            "accepted_at": list(counters.accepted_at),
        },
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row


def _difference(now: Counted, seen: dict[str, Any]) -> Counted:
    at = [a - b for a, b in zip(now.accepted_at, seen["accepted_at"], strict=False)]
    rounds, accepted = now.rounds - seen["rounds"], now.accepted - seen["accepted"]
    same_depth = len(now.accepted_at) == len(seen["accepted_at"])
    if not same_depth or min(rounds, accepted, *at) < 0:
        return now
    return Counted(rounds, accepted, tuple(at))


def _window(session: Session, draft: Draft, policy: DriftPolicy, now: datetime) -> Counted:
    since = now - timedelta(hours=policy.window_hours)
    query = select(Observation).where(
        Observation.draft_id == draft.id, Observation.created_at > since, Observation.rounds > 0
    )
    return total(
        [Counted(o.rounds, o.accepted, tuple(o.accepted_at)) for o in session.scalars(query)]
    )


def _say(
    session: Session,
    draft: Draft,
    spec: JobSpec,
    policy: DriftPolicy,
    verdict: Verdict,
    settings: Settings,
    now: datetime,
) -> None:
    found: dict[str, Any] = {**verdict.record(), "since": now.isoformat(), "action": policy.action}
    if policy.action == "retrain":
        found |= _retrain(session, draft, spec, settings, now)
    found["proposal"] = _proposal(draft, found.get("job_id"))
    draft.drift = found
    data = {"draft_id": draft.id, "name": draft.name, "target": draft.target_resolved, **found}
    announce(session, "draft.drifted", draft.owner, data, job_id=draft.job_id, now=now)


def _proposal(draft: Draft, job_id: str | None) -> dict[str, Any]:
    """What is to be done: a job that goes on from the draft, where none does yet, and once it has
    succeeded an evaluation of its draft beside this one."""
    evaluation = {
        "route": f"POST /v1/drafts/{job_id or '{job_id}'}/evaluations",
        "body": {"against": draft.id},
    }
    if job_id is not None:
        return {"evaluation": evaluation}
    body = {"target": draft.target, "overrides": {"train": {"start_from": f"draft:{draft.id}"}}}
    return {"job": {"route": "POST /v1/jobs", "body": body}, "evaluation": evaluation}


def _retrain(
    session: Session, draft: Draft, spec: JobSpec, settings: Settings, now: datetime
) -> dict[str, str]:
    """A job like the draft's own that goes on from it; its draft must pass the same gates."""
    labels = {**spec.labels, "retrains": draft.id}
    again = spec.model_copy(update={"attach": None, "labels": labels})
    again = with_parent(again, draft)
    try:
        made = submit(session, again, settings=settings, now=now, owner=draft.owner)
    except QuotaExceeded as e:
        return {"refused": str(e)}
    return {"job_id": made.job.id}
