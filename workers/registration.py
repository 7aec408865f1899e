"""What every registration writes: the draft's row, and the end of the job."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from jobs.endings import finish
from jobs.ids import new_id
from jobs.leases import Lease
from jobs.models import Draft
from workers.bundle import Bundle


def new_draft(lease: Lease, bundle: Bundle, metrics: dict[str, Any], now: datetime) -> Draft:
    """The row of the draft that a lease's job has made."""
    facts = bundle.facts
    return Draft(
        id=new_id("dft_", now),
        job_id=lease.job_id,
        owner=lease.account,
        name=lease.spec.registry_name(),
        target=lease.spec.target,
        target_resolved=facts["target_resolved"],
        weights_sha256=facts["weights_sha256"],
        tokenizer_sha256=facts["tokenizer_sha256"],
        template_sha256=facts["template_sha256"],
        capture_layers=list(facts["capture_layers"]),
        metrics=metrics,
        uri=bundle.prefix,
        manifest_sha256=bundle.manifest_sha256,
        created_at=now,
    )


def finish_registered(
    session: Session,
    lease: Lease,
    draft: Draft,
    bundle: Bundle,
    result: dict[str, Any],
    *,
    started: datetime,
    now: datetime,
) -> None:
    """End the job of a draft that is registered.

    Args:
        result: the job's, `gates` among it; what the draft is called is added.
    """
    done = {"draft_id": draft.id, "alias": draft.alias.value, "gates": result["gates"]}
    finish(
        session,
        lease,
        now=now,
        summary=done,
        digest=bundle.manifest_sha256,
        uri=bundle.prefix,
        seconds=round((now - started).total_seconds(), 3),
        result={**result, **done, "name": draft.name},
    )
