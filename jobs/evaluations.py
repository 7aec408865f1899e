"""Evaluations in the database: drafts that are measured again, and what came of it.

An evaluation is a job that ends with the stage `probe`. Its result is written in the transaction
that ends the stage, as the job's and as a row that stays with the draft.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from eagle3.config import TargetRef
from jobs.attach_decision import Check, figure_checks
from jobs.drafts import get_draft, holder
from jobs.errors import InvalidSpec, NotFound
from jobs.evaluate_spec import Evaluate
from jobs.ids import new_id
from jobs.models import Alias, Draft, Evaluation, Job
from jobs.pages import Page, page_of
from jobs.spec import Gates, JobSpec

Comparison = Literal["better", "no_worse", "worse", "undecided"]
CHAMPION = "champion"
OF_PROBE = (
    "fits", "why", "distance", "tau", "tau_ci", "acceptance_by_position", "depth", "speedup",
    "speedup_ci", "plain_tokens_per_s", "draft_tokens_per_s", "lossless", "compared_tokens",
    "near_ties", "mismatches", "prompts", "rounds",
)  # fmt: skip
"""What the result says of a draft, of what the probe found."""


def evaluation_of(former: JobSpec, draft: Draft, evaluate: Evaluate, **changes: Any) -> JobSpec:
    """The job that measures a draft: that which made it, without what it trained and registered.

    Args:
        changes: fields of the job that are others.
    """
    overrides = {name: part for name, part in former.overrides.items() if name != "train"}
    hub = TargetRef.parse(draft.target).kind == "hub"
    return former.model_copy(
        update={
            "target": draft.target_resolved if hub else draft.target,
            "overrides": overrides,
            "gates": Gates(parity=evaluate.parity),
            "attach": None,
            "priority": 0,
            "labels": {},
            "evaluate": evaluate,
            **changes,
        }
    )


def with_drafts(
    session: Session, spec: JobSpec, owner: str | None, at: str = "evaluate."
) -> JobSpec:
    """The spec with the drafts that it measures named by id.

    Args:
        owner: whose drafts may be used; everybody's when None.
        at: path of the fields that name them, for errors.

    Raises:
        InvalidSpec: there is none of that name, or it is held against itself.
    """
    asked = spec.evaluate
    assert asked is not None  # noqa: S101 - only evaluations come here
    draft = _named(session, asked.draft, owner, f"{at}draft")
    found = {"draft": draft.id}
    if asked.against is not None:
        other = _champion(session, draft, owner) if asked.against == CHAMPION else None
        other = other or _named(session, _standing(draft, asked.against), owner, f"{at}against")
        if other.id == draft.id:
            detail = f"{asked.against} is draft {draft.id} itself; name another one"
            raise InvalidSpec([{"pointer": f"{at}against", "detail": detail}])
        found["against"] = other.id
    return spec.model_copy(update={"evaluate": asked.model_copy(update=found)})


def add_evaluation(session: Session, job: Job, evaluate: Evaluate) -> Evaluation:
    """The row that goes with an evaluation's job."""
    made = Evaluation(
        id=new_id("evl_", job.created_at),
        job_id=job.id,
        draft_id=evaluate.draft,
        against_id=evaluate.against,
        created_at=job.created_at,
    )
    session.add(made)
    session.flush()
    return made


def evaluated(
    session: Session, job_id: str, spec: JobSpec, summary: dict[str, Any], *, now: datetime
) -> dict[str, Any]:
    """Keep what an evaluation has measured. Call it in the transaction that ends the stage, which
    the lease guards. Returns the job's result.

    Args:
        summary: that of `probe`.
    """
    row = session.scalars(select(Evaluation).where(Evaluation.job_id == job_id)).one()
    draft = session.get_one(Draft, row.draft_id)
    row.result = result_of(spec, summary, draft.metrics)
    row.finished_at = now
    session.flush()
    return row.result


def result_of(spec: JobSpec, summary: dict[str, Any], registered: dict[str, Any]) -> dict[str, Any]:
    """What was measured of the draft, of the other one, and how the two compare.

    Args:
        registered: the figures that the draft is registered with.
    """
    asked = spec.evaluate
    assert asked is not None  # noqa: S101
    found = {one["id"]: one for one in summary["probed"]}
    own = found[asked.draft]
    result: dict[str, Any] = {
        "draft_id": asked.draft,
        "weights_sha256": summary["fingerprint"]["weights_sha256"],
        "registered_tau": registered.get("tau"),
        **{name: own[name] for name in OF_PROBE},
        "parity": summary.get("parity"),
    }
    if asked.against is not None:
        other = found[asked.against]
        result["against"] = {
            "draft_id": asked.against,
            **{name: other[name] for name in OF_PROBE},
            **_compared(summary.get("compared"), other, asked.tolerance),
        }
    checks = _checks(spec, result)
    passed = all(check.passed for check in checks)
    result["gates"] = {"passed": passed, "checks": [c.model_dump(mode="json") for c in checks]}
    return result


def comparison(gain_ci: tuple[float, float], margin: float) -> Comparison:
    """What an interval of the difference of two acceptance lengths says.

    `better` where all of it lies above 0, `no_worse` where all of it lies above -margin, `worse`
    where all of it lies below 0; else it is too wide to say.
    """
    low, high = gain_ci
    if low > 0:
        return "better"
    if low >= -margin:
        return "no_worse"
    return "worse" if high < 0 else "undecided"


def list_evaluations(
    session: Session, draft: Draft, *, after: str | None = None, limit: int = 20
) -> Page[tuple[Evaluation, Job]]:
    """Evaluations of a draft with their jobs."""
    query = (
        select(Evaluation, Job)
        .join(Job, Job.id == Evaluation.job_id)
        .where(Evaluation.draft_id == draft.id)
        .order_by(Evaluation.id.desc())
    )
    if after is not None:
        query = query.where(Evaluation.id < after)
    rows = [(one, job) for one, job in session.execute(query.limit(limit + 1))]
    return page_of(rows, limit, lambda row: row[0].id)


def _compared(
    gain: dict[str, Any] | None, other: dict[str, Any], tolerance: float
) -> dict[str, Any]:
    """The verdict, of an interval that the probe found; none where one of the two does not fit."""
    if gain is None:
        return {"comparison": "undecided", "tau_gain": None, "tau_gain_ci": None, "margin": None}
    margin, (low, high) = other["tau"] * tolerance, gain["tau_ci"]
    said = comparison((low, high), margin)
    return {
        "comparison": said,
        "tau_gain": gain["tau"],
        "tau_gain_ci": [low, high],
        "margin": margin,
    }


def _checks(spec: JobSpec, result: dict[str, Any]) -> list[Check]:
    gates = spec.gates
    checks = []
    if gates.lossless:
        said = result["lossless"]
        checks.append(Check(name="lossless", required=True, measured=said, passed=bool(said)))
    if spec.evaluate is not None and spec.evaluate.parity:
        holds = (result["parity"] or {}).get("holds")
        checks.append(Check(name="parity", required=True, measured=holds, passed=bool(holds)))
    checks += figure_checks(gates, result["tau"], result["speedup"], None)
    if "against" in result:
        said = result["against"]["comparison"]
        passed = said in ("better", "no_worse")
        checks.append(Check(name="against", required="no_worse", measured=said, passed=passed))
    return checks


def _champion(session: Session, draft: Draft, owner: str | None) -> Draft | None:
    """The champion among a draft's rivals for its own target, unless it is another owner's: names
    are shared, drafts are not."""
    found = holder(session, draft, Alias.CHAMPION)
    return found if found is not None and owner in (None, found.owner) else None


def _standing(draft: Draft, against: str) -> str:
    return f"{draft.name}@{CHAMPION}" if against == CHAMPION else against


def _named(session: Session, ref: str, owner: str | None, pointer: str) -> Draft:
    try:
        return get_draft(session, ref, owner=owner)
    except NotFound:
        detail = f"no draft {ref!r} among those you may use; `updraft drafts` lists them"
        raise InvalidSpec([{"pointer": pointer, "detail": detail}]) from None
