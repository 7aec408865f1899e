"""What a job would take: its target's config and its prompts, or what an earlier job found out."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from eagle3.plan import (
    TYPICAL_PROMPT_TOKENS,
    Hardware,
    Hub,
    Plan,
    PromptCount,
    TargetShape,
    UnknownShape,
    Unreachable,
    count_prompts,
    make_plan,
    read_config,
    workload,
)
from jobs import service
from jobs.evaluate_spec import Evaluate
from jobs.models import Job
from jobs.settings import Settings
from jobs.spec import JobSpec

LOOK_BACK = 20
"""Latest jobs for a target that are looked at."""


@dataclass
class Earlier:
    """What earlier jobs for the same target have found out."""

    shape: TargetShape | None = None
    prompts: PromptCount | None = None
    """Of the same prompts."""
    prompt_tokens: float = TYPICAL_PROMPT_TOKENS
    job_id: str | None = None
    """The job that prepared the same prompts, or else the one that resolved the target."""


@dataclass
class Estimate:
    """A plan, or what keeps it from being made."""

    plan: Plan | None = None
    shape: TargetShape | None = None
    """The target's sizes, where its own config says them."""
    unknown: list[str] = field(default_factory=list)


def hub_of(settings: Settings) -> Hub:
    """The hub, as this deployment may ask it."""
    token = settings.hub_token
    return Hub(
        token=token.get_secret_value() if token else None,
        offline=settings.hub_offline,
    )


def earlier(session: Session, spec: JobSpec, owner: str | None) -> Earlier:
    """What the latest visible jobs for this target say."""
    found = Earlier()
    wanted = spec.prompts.model_dump(mode="json")
    jobs = service.list_jobs(session, owner=owner, target=spec.target, limit=LOOK_BACK).items
    stages = service.stage_rows(session, jobs, "name", "summary")
    for job in jobs:
        facts = {stage.name: stage.summary or {} for stage in stages[job.id]}
        if found.shape is None:
            found.shape = _shape(job, facts.get("resolve", {}), found)
        prepared = facts.get("prepare", {})
        if job.spec.get("prompts") == wanted and prepared.get("train"):
            train, heldout = int(prepared["train"]), int(prepared.get("heldout", 0))
            found.prompts = PromptCount(train=train, heldout=heldout)
            found.prompt_tokens = float(prepared.get("prompt_tokens", 0)) / (train + heldout) or 1.0
            found.job_id = job.id
            break
    return found


def _shape(job: Job, facts: dict[str, object], found: Earlier) -> TargetShape | None:
    try:
        shape = TargetShape.from_facts(facts)
    except UnknownShape:
        return None
    found.job_id = job.id
    return shape


def estimate_job(
    spec: JobSpec, known: Earlier, hub: Hub, hardware: Hardware, price: float | None
) -> Estimate:
    """Plan a job; no weights are fetched.

    Args:
        price: of an hour of all the hardware.
    """
    if spec.evaluate is not None:
        return Estimate(unknown=[_of_evaluation(spec.evaluate)])
    found = Estimate()
    shape, prompts = known.shape, known.prompts
    try:
        # A config says more than a job's facts do: how many heads have keys of their own.
        shape = found.shape = TargetShape.from_config(read_config(spec.target_ref, hub))
    except (Unreachable, UnknownShape) as e:
        if shape is None:
            found.unknown.append(f"the target's sizes: {e}")
    if prompts is None:
        try:
            prompts = count_prompts(spec.prompts, hub.rows)
        except Unreachable as e:
            found.unknown.append(f"the number of prompts: {e}")
    if shape is not None and prompts is not None:
        recipe = spec.resolved_recipe()
        work = workload(recipe, prompts.train, prompts.heldout, known.prompt_tokens)
        found.plan = make_plan(
            recipe, shape, work, hardware, price_per_hour=price, based_on=known.job_id
        )
    return found


def _of_evaluation(asked: Evaluate) -> str:
    drafts = "the draft" if asked.against is None else "each of two drafts"
    return (
        f"the hours: an evaluation trains nothing; it decodes {asked.count} prompts of at most "
        f"{asked.max_new_tokens} tokens with {drafts} and without"
    )
