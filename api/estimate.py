"""What a job would cost, from what an earlier job has found out about its target and prompts."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from eagle3.plan import TargetSize, estimate
from jobs import service
from jobs.models import Job
from jobs.spec import JobSpec

LOOK_BACK = 20
"""Latest jobs for a target that are looked at."""

_SIZES = ("parameters", "hidden_size", "intermediate_size", "vocab_size")


def estimate_job(session: Session, spec: JobSpec, owner: str | None) -> dict[str, Any] | None:
    """Tokens, bytes and arithmetic (`eagle3.plan.Plan`), and the job whose facts they rest on.

    Returns:
        None when no visible job has resolved this target and prepared these prompts: reading the
        sizes of a target that is new takes a download, which is what `resolve` does.
    """
    page = service.list_jobs(session, owner=owner, target=spec.target, limit=LOOK_BACK)
    for job in page.items:
        if job.spec.get("prompts") == spec.prompts.model_dump(mode="json"):
            if found := _from_job(job, spec):
                return found
    return None


def _from_job(job: Job, spec: JobSpec) -> dict[str, Any] | None:
    facts = {stage.name: stage.summary or {} for stage in job.stages}
    target, prompts = facts.get("resolve", {}), facts.get("prepare", {})
    if not all(name in target for name in _SIZES) or not prompts.get("train"):
        return None
    train, heldout = int(prompts["train"]), int(prompts.get("heldout", 0))
    size = TargetSize(**{name: int(target[name]) for name in _SIZES})
    mean = float(prompts.get("prompt_tokens", 0)) / (train + heldout)
    plan = estimate(spec.resolved_recipe(), size, train, heldout, mean or 1.0)
    return {**plan.as_dict(), "based_on": job.id}
