"""The register stage: report, gates, bundle, and the draft's row. It alone runs in the worker.

MLflow is told through the outbox, by the relay: its absence delays the mirror and fails nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from eagle3.config import TargetRef
from eagle3.plan import serving
from jobs.drafts import add_draft
from jobs.endings import Failure, finish
from jobs.errors import FailureReason
from jobs.ids import new_id
from jobs.leases import Lease
from jobs.models import Draft, Job, Stage
from workers.bundle import Bundle, collect, job_facts, store_bundle
from workers.execute import StageFailed, execute
from workers.gates import is_lossless, judge_gates
from workers.keeper import Keeper
from workers.runtime import Runtime


def register(
    rt: Runtime, lease: Lease, keeper: Keeper, run: Path, earlier: list[Stage]
) -> Callable[[Session], None]:
    """Do the register stage. Returns the write that adds the draft and ends the job, all in one.

    Raises:
        StageFailed: the report failed, or (`quality_gate`) the draft changes tokens and the job
            requires that it does not. The report is kept then, and no draft is registered.
    """
    started = rt.clock()
    execute(rt, lease, keeper, run, "report")
    summaries = {s.name: s.summary or {} for s in earlier}
    gates = judge_gates(lease.spec.gates, summaries)
    resolved = str(summaries["resolve"]["resolved"])
    target = TargetRef.parse(lease.spec.target)
    bench = lease.spec.resolved_recipe().benchmark.chosen(summaries["benchmark"])
    flags = serving(target, resolved, bench)
    collect(run, run / "bundle", flags)
    bundle = store_bundle(rt.store, run / "bundle", job_facts(lease, summaries), keeper.check)
    metrics = draft_metrics(summaries)
    result: dict[str, Any] = {
        "uri": rt.store.uri(bundle.prefix),
        "metrics": metrics,
        "gates": gates,
        "artifacts": bundle.files,
        "system": _system(run),
    }
    if lease.spec.gates.lossless and not is_lossless(summaries):
        text = "the draft changes tokens: greedy output with it differs from the target's own"
        hint = "read certificate.json among the job's artifacts; no draft was registered"
        raise StageFailed(Failure(FailureReason.QUALITY_GATE, text, hint), result)

    def write(session: Session) -> None:
        now = rt.clock()
        owner = session.scalars(select(Job.owner).where(Job.id == lease.job_id)).one()
        draft = _draft(lease, summaries, bundle, metrics, owner)
        draft.id, draft.created_at = new_id("dft_", now), now
        draft = add_draft(session, draft, champion=bool(gates["passed"]), now=now)
        done = {**result, "draft_id": draft.id, "name": draft.name, "alias": draft.alias.value}
        finish(
            session,
            lease,
            now=now,
            summary={"draft_id": draft.id, "alias": draft.alias.value, "gates": gates},
            digest=bundle.manifest_sha256,
            uri=bundle.prefix,
            seconds=round((now - started).total_seconds(), 3),
            result=done,
        )

    return write


def draft_metrics(summaries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures a draft is chosen by."""
    bench, train = summaries.get("benchmark", {}), summaries.get("train", {})
    names = ("tau", "tau_ci", "speedup", "speedup_ci", "acceptance_by_position", "depth")
    return {
        **{name: bench.get(name) for name in names},
        "plain_tokens_per_s": bench.get("plain_tokens_per_s"),
        "draft_tokens_per_s": bench.get("draft_tokens_per_s"),
        "acceptance_length": train.get("acceptance_length"),
        "lossless": is_lossless(summaries),
        "draft_vocab_size": summaries.get("export", {}).get("draft_vocab_size"),
        "parameters": summaries.get("export", {}).get("parameters"),
    }


def _draft(
    lease: Lease,
    summaries: dict[str, dict[str, Any]],
    bundle: Bundle,
    metrics: dict[str, Any],
    owner: str,
) -> Draft:
    facts = job_facts(lease, summaries)
    return Draft(
        job_id=lease.job_id,
        owner=owner,
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
    )


def _system(run: Path) -> dict[str, Any]:
    """Hardware and library versions of the training, from its manifest."""
    folder = run / "stages" / "train"
    manifest = folder / (folder / "current").read_text().strip() / "manifest.json"
    found = json.loads(manifest.read_text())
    return {"hardware": found.get("hardware", {}), "versions": found.get("versions", {})}
