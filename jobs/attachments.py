"""Attachments in the database: the row of one, its candidates, its decision and its outcome.

An attachment is a job with the stage `probe` after `prepare`. When that has measured, the decision
is taken in the transaction that ends the stage: stages that are not needed are taken out, or the
job's training is told which draft to go on from. So it survives whatever a job survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from jobs.attach_decision import Decision, Tried, decide
from jobs.errors import FailureReason, NotFound
from jobs.events import append_event, lock_job
from jobs.ids import new_id
from jobs.lineage import SIZES, with_parent
from jobs.models import Alias, Attachment, Draft, Job, Stage
from jobs.registry import texts
from jobs.spec import JobSpec
from jobs.states import JobStatus

Outcome = Literal[
    "pending",
    "attached",
    "attached_by_reuse",
    "gates_failed",
    "incompatible",
    "failed",
    "cancelled",
]
SCANNED = 500
"""Newest drafts of an owner that are looked at."""
KEPT = ("resolve", "prepare", "probe", "register")
"""Stages of a job that reuses a draft."""
LINEAGE = {
    4: "made for these very weights",
    3: "of the same registered model",
    2: "for another revision of the same model",
    1: "with the same tokenizer",
    0: "for a model of the same sizes",
}


@dataclass(frozen=True)
class Candidate:
    """A draft that may fit, and the tree that its registered figures were measured with."""

    draft: Draft
    kin: int
    """A key of `LINEAGE`."""
    depth: int
    top_k: int
    total_tokens: int | None


def add_attachment(session: Session, job: Job) -> Attachment:
    """The row that goes with an attachment's job."""
    made = Attachment(
        id=new_id("att_", job.created_at),
        job_id=job.id,
        owner=job.owner,
        created_at=job.created_at,
    )
    session.add(made)
    session.flush()
    return made


def get_attachment(
    session: Session, ref: str, *, owner: str | None = None
) -> tuple[Attachment, Job]:
    """An attachment by its id or its job's, with the job.

    Raises:
        NotFound: none, or another owner's.
    """
    query = select(Attachment).where((Attachment.id == ref) | (Attachment.job_id == ref))
    found = session.scalars(query).one_or_none()
    if found is None or (owner is not None and found.owner != owner):
        raise NotFound(f"no attachment {ref!r}; POST /v1/attachments makes one")
    return found, session.get_one(Job, found.job_id)


def candidates(
    session: Session, spec: JobSpec, resolve: dict[str, Any], owner: str
) -> list[Candidate]:
    """Drafts of the target's sizes, those of the nearest lineage first, of these champions first,
    of these the newest. The same draft, registered for several checkpoints, comes once.

    Args:
        resolve: the summary of the job's stage `resolve`.
    """
    if spec.attach is None:
        return []
    query = (
        select(Draft, Stage.summary)
        .join(Stage, (Stage.job_id == Draft.job_id) & (Stage.name == "resolve"))
        .where(Draft.owner == owner, Draft.deprecated_at.is_(None))
        .order_by(Draft.id.desc())
        .limit(SCANNED)
    )
    rows = [
        (draft, kinship(spec, resolve, draft))
        for draft, facts in session.execute(query)
        if all(
            (facts or {}).get(key) == resolve.get(key) for key in (*SIZES.values(), "num_layers")
        )
    ]
    rows.sort(key=lambda row: (row[1], row[0].alias == Alias.CHAMPION), reverse=True)  # stable
    found: dict[str, Candidate] = {}
    for draft, kin in rows:
        source = str(draft.metrics.get("reuses") or draft.id)
        if source not in found:
            found[source] = Candidate(draft, kin, *tree_of(session, draft))
    return list(found.values())[: spec.attach.probe.candidates]


def kinship(spec: JobSpec, resolve: dict[str, Any], draft: Draft) -> int:
    """How nearly a draft's target is related to a job's: a key of `LINEAGE`."""
    if draft.weights_sha256 == resolve.get("weights_sha256"):
        return 4
    if draft.name == spec.registry_name():
        return 3
    if _model(draft.target_resolved) == _model(str(resolve.get("resolved"))):
        return 2
    return int(draft.tokenizer_sha256 == resolve.get("tokenizer_sha256"))


def settle(
    session: Session, job_id: str, summary: dict[str, Any], *, now: datetime
) -> tuple[Decision, FailureReason | None]:
    """Decide about a job that has just been probed, and make its stages fit. Call it in the
    transaction that ends the stage, which the lease guards.

    Returns:
        The decision, and why the job fails, where it does.
    """
    job = lock_job(session, job_id)
    assert job is not None  # noqa: S101 - a lease is held on a stage of it
    spec = JobSpec.model_validate(job.spec)
    assert spec.attach is not None  # noqa: S101 - only attachments are probed
    resolve = select(Stage.summary).where(Stage.job_id == job_id, Stage.name == "resolve")
    tried = tried_of(session, spec, session.scalar(resolve) or {}, summary)
    decision = decide(spec.attach, spec.gates, tried)
    row = session.scalars(select(Attachment).where(Attachment.job_id == job_id)).one()
    row.fingerprint, row.decided_at = summary["fingerprint"], now
    row.decision = decision.model_dump(mode="json")
    data = decision.model_dump(mode="json", exclude={"tried"})
    text = f"{decision.mode}: {decision.why}"
    append_event(session, job_id, "attach.decided", text, now=now, data=data)
    if decision.mode == "reuse":
        session.execute(delete(Stage).where(Stage.job_id == job_id, Stage.name.not_in(KEPT)))
    elif decision.mode == "warm_start":
        parent = session.get_one(Draft, decision.draft_id)
        job.spec = _warm(spec, parent, spec.attach.warm_start_budget).model_dump(mode="json")
    session.flush()
    if decision.mode != "none":
        return decision, None
    bad = decision.incompatible
    return decision, FailureReason.BAD_INPUT if bad else FailureReason.QUALITY_GATE


def tried_of(
    session: Session, spec: JobSpec, resolve: dict[str, Any], summary: dict[str, Any]
) -> list[Tried]:
    """The candidates of a probe, with what they are registered with.

    Args:
        resolve: the summary of the job's stage `resolve`.
        summary: that of `probe`.
    """
    found: list[Tried] = []
    for one in summary["probed"]:
        draft = session.get_one(Draft, one["id"])
        named = {k: one[k] for k in Tried.model_fields.keys() & one.keys()}
        found.append(
            Tried(
                **named,
                name=draft.name,
                lineage=LINEAGE[kinship(spec, resolve, draft)],
                incumbent=draft.alias == Alias.CHAMPION and draft.name == spec.registry_name(),
                registered_tau=_as_trained(session, draft).metrics.get("tau"),
                same_layers=one["capture_layers"] == summary["capture_layers"],
            )
        )
    return found


def decision_of(session: Session, job_id: str) -> Decision | None:
    """What was decided about a job, if it is an attachment that has come so far."""
    query = select(Attachment.decision).where(Attachment.job_id == job_id)
    found = session.scalar(query)
    return None if found is None else Decision.model_validate(found)


def outcome(job: Job, decision: Decision | None) -> Outcome:
    """How an attachment stands, in one word."""
    if job.status == JobStatus.CANCELLED:
        return "cancelled"
    if job.status == JobStatus.FAILED:
        reason = (job.error or {}).get("reason")
        if reason == FailureReason.BAD_INPUT:
            return "incompatible"
        return "gates_failed" if reason == FailureReason.QUALITY_GATE else "failed"
    if job.status != JobStatus.SUCCEEDED:
        return "pending"
    if not (job.result or {}).get("gates", {}).get("passed"):
        return "gates_failed"
    return "attached_by_reuse" if decision and decision.mode == "reuse" else "attached"


def checks_of(job: Job, decision: Decision | None) -> Sequence[dict[str, Any]]:
    """The gates of an attachment, with what was measured; of a reuse, by the probe."""
    checks: list[dict[str, Any]] = (job.result or {}).get("gates", {}).get("checks", [])
    return checks or [c.model_dump(mode="json") for c in (decision.checks if decision else ())]


def tags_of(session: Session, job_id: str) -> dict[str, str]:
    """What a model's version says of how it was attached."""
    decision = decision_of(session, job_id)
    if decision is None:
        return {}
    used = next((t for t in decision.tried if t.id == decision.draft_id), None)
    tags: dict[str, Any] = {
        "attach.decision": decision.mode,
        "attach.why": decision.why[:500],
        "attach.from": decision.draft_id,
        "attach.incumbent": decision.incumbent,
        "attach.incumbent_tau": decision.incumbent_tau,
    }
    if used is not None:
        tags |= {"attach.distance": used.distance, "attach.tau_before": used.tau}
    return texts(tags)


def revisions(draft: Draft) -> list[str]:
    """What `for-…` aliases are made of: the weights' hash and, of a hub's model, its commit."""
    commit = draft.target_resolved.rpartition("@")[2]
    hub = len(commit) == 40 and set(commit) <= set("0123456789abcdef")
    return [draft.weights_sha256[:12], *([commit[:12]] if hub else [])]


def _warm(spec: JobSpec, parent: Draft, budget: float) -> JobSpec:
    """The job, going on from a draft with a part of the recipe's passes."""
    epochs = spec.resolved_recipe().train.epochs * budget
    train = {**spec.overrides.get("train", {}), "epochs": epochs}
    cheaper = spec.model_copy(update={"overrides": {**spec.overrides, "train": train}})
    return with_parent(cheaper, parent)


def tree_of(session: Session, draft: Draft) -> tuple[int, int, int | None]:
    """Depth, children of a node and nodes of the tree that a draft was measured with."""
    query = select(Stage.summary).where(Stage.job_id == draft.job_id, Stage.name == "benchmark")
    found = session.scalar(query) or draft.metrics
    return int(found.get("depth") or 3), int(found.get("top_k") or 1), found.get("total_tokens")


def _as_trained(session: Session, draft: Draft) -> Draft:
    """The draft that a row reuses, if it does: what is left is left of that one's acceptance, or
    each reuse in a row might lose a tenth of the one before."""
    source = draft.metrics.get("reuses")
    return draft if source is None else session.get_one(Draft, source)


def _model(resolved: str) -> str:
    return resolved.rpartition("@")[0]
