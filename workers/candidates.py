"""The drafts that a probe is to try, brought onto this machine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from eagle3.config import ProbeConfig, ProbedDraft, RunConfig
from jobs.attachments import Candidate, candidates, kinship, tree_of
from jobs.errors import ChecksumMismatch, NotFound
from jobs.files import Check
from jobs.leases import Lease
from jobs.models import Draft, Stage
from jobs.spec import JobSpec
from workers.bundle import bring_draft
from workers.runtime import Runtime
from workers.uploads import MANIFEST

FINGERPRINT = "fingerprint.json"

log = logging.getLogger(__name__)


def with_candidates(
    rt: Runtime,
    lease: Lease,
    earlier: list[Stage],
    config: RunConfig,
    folder: Path,
    check: Check,
) -> RunConfig:
    """The config of a run that is about to be probed, its candidates in `folder`. A candidate that
    the store has lost is left out; a draft that is to be evaluated is missed.

    Raises:
        NotFound, ChecksumMismatch: of an evaluation, as `bring_draft`.
    """
    resolve = next((s.summary or {} for s in earlier if s.name == "resolve"), {})
    with rt.db.read() as session:
        found = _wanted(session, lease, resolve)
    drafts = []
    for one in found:
        try:
            path = bring_draft(rt, one.draft.id, folder / one.draft.id, check)
            _fingerprint(rt, one.draft, path, check)
        except (NotFound, ChecksumMismatch) as e:
            if lease.spec.evaluate is not None:
                raise
            log.warning("not tried: %s", e, extra={"job_id": lease.job_id})
            continue
        drafts.append(
            ProbedDraft(
                id=one.draft.id,
                path=str(path),
                depth=one.depth,
                top_k=one.top_k,
                total_tokens=one.total_tokens,
            )
        )
    probe = ProbeConfig(drafts=tuple(drafts), **_how(lease.spec))
    return config.model_copy(update={"probe": probe})


def _wanted(session: Session, lease: Lease, resolve: dict[str, Any]) -> list[Candidate]:
    """Those that an evaluation names, its own first; or those that an attachment may reuse."""
    asked = lease.spec.evaluate
    if asked is None:
        return candidates(session, lease.spec, resolve, lease.account)
    drafts = [session.get_one(Draft, one) for one in (asked.draft, asked.against) if one]
    return [
        Candidate(one, kinship(lease.spec, resolve, one), *tree_of(session, one)) for one in drafts
    ]


def _how(spec: JobSpec) -> dict[str, Any]:
    if spec.evaluate is None:
        assert spec.attach is not None  # noqa: S101 - no other job has the stage
        return spec.attach.probe.model_dump(exclude={"candidates"})
    asked = spec.evaluate
    return {
        "prompts": asked.count,
        "max_new_tokens": asked.max_new_tokens,
        "spot_checks": asked.count,
        "compare": asked.against is not None,
        "parity": asked.parity,
    }


def _fingerprint(rt: Runtime, draft: Draft, path: Path, check: Check) -> None:
    """What says which checkpoint the draft was made for; drafts of earlier versions have none."""
    listed = json.loads(rt.store.get_bytes(f"{draft.uri}/{MANIFEST}"))["files"]
    if FINGERPRINT in listed and not (path / FINGERPRINT).is_file():
        key = f"{draft.uri}/{FINGERPRINT}"
        rt.store.get_file(key, path / FINGERPRINT, listed[FINGERPRINT]["sha256"], check)
