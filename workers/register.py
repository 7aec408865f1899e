"""The register stage: report, gates, bundle, and the draft's row. It alone runs in the worker.

MLflow is told through the outbox, by the relay: its absence delays the mirror and fails nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from jobs.drafts import add_draft, attach
from jobs.endings import Failure
from jobs.errors import FailureReason
from jobs.leases import Lease
from jobs.models import Stage
from workers.attach import decided, floor_of, promotes, register_reused
from workers.bundle import collect, job_facts, output_of, store_bundle
from workers.execute import StageFailed, execute
from workers.gates import is_lossless, judge_gates
from workers.keeper import Keeper
from workers.registration import finish_registered, new_draft
from workers.runtime import Runtime
from workers.serving import readme, serving_facts
from workers.uploads import MANIFEST


def register(
    rt: Runtime, lease: Lease, keeper: Keeper, run: Path, earlier: list[Stage]
) -> Callable[[Session], None]:
    """Do the register stage. Returns the write that adds the draft and ends the job, all in one.

    Raises:
        StageFailed: the report failed, or (`quality_gate`) the draft changes tokens and the job
            requires that it does not. The report is kept then, and no draft is registered.
    """
    started, decision = rt.clock(), decided(rt, lease)
    if decision is not None and decision.mode == "reuse":
        return register_reused(rt, lease, keeper, run, earlier, decision)
    execute(rt, lease, keeper, run, "report")
    summaries = {s.name: s.summary or {} for s in earlier}
    gates = judge_gates(lease.spec.gates, summaries, floor_of(lease, decision))
    serving = serving_facts(lease.spec, lease.job_id, summaries)
    collect(run, run / "bundle", serving, readme(lease.spec.registry_name(), serving, summaries))
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
        passed = bool(gates["passed"])
        draft = new_draft(lease, bundle, metrics, now)
        draft = add_draft(session, draft, champion=passed and promotes(lease), now=now)
        if passed and decision is not None:
            attach(session, draft, now=now)
        finish_registered(session, lease, draft, bundle, result, started=started, now=now)

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
        "parity": summaries.get("parity", {}).get("holds"),
        "engines": summaries.get("parity", {}).get("engines"),
        "draft_vocab_size": summaries.get("export", {}).get("draft_vocab_size"),
        "parameters": summaries.get("export", {}).get("parameters"),
    }


def _system(run: Path) -> dict[str, Any]:
    """Hardware and library versions of the training, from its manifest."""
    found = json.loads((output_of(run, "train") / MANIFEST).read_text())
    return {"hardware": found.get("hardware", {}), "versions": found.get("versions", {})}
