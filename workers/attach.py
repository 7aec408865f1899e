"""What attachments and evaluations add to a worker: the end of a probe, and the registration of a
reused draft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from jobs.attach_decision import Decision, incumbent_floor
from jobs.attachments import decision_of, settle
from jobs.drafts import add_draft, attach, get_draft, promote
from jobs.endings import Failure, fail, finish
from jobs.evaluations import evaluated
from jobs.files import canonical_json
from jobs.leases import Lease
from jobs.models import Draft, Stage
from jobs.spec import JobSpec
from workers.bundle import Bundle, bring_draft, job_facts, output_of, store_bundle
from workers.candidates import FINGERPRINT
from workers.keeper import Keeper
from workers.registration import finish_registered, new_draft
from workers.runtime import Runtime
from workers.serving import serving_facts
from workers.uploads import MANIFEST

HINT = "GET /v1/attachments/{id} has the evidence; allow more in the policy, or change its gates"


def end_probe(
    rt: Runtime, session: Session, lease: Lease, result: dict[str, Any], uri: str
) -> None:
    """Decide, and end the stage: the job goes on as decided, or fails where nothing may be done.
    An evaluation ends with what was measured."""
    now, found = rt.clock(), None
    if lease.spec.evaluate is not None:
        found = evaluated(session, lease.job_id, lease.spec, result["summary"], now=now)
    else:
        decision, reason = settle(session, lease.job_id, result["summary"], now=now)
        if reason is not None:
            failure = Failure(reason, decision.why, HINT, retryable=False)
            fail(session, lease, failure, settings=rt.settings, now=now)
            return
    finish(
        session,
        lease,
        now=now,
        summary=result["summary"],
        digest=result["digest"],
        uri=uri,
        seconds=result["seconds"],
        result=found,
    )


def decided(rt: Runtime, lease: Lease) -> Decision | None:
    """What was decided about a lease's job, if it is an attachment."""
    with rt.db.read() as session:
        return decision_of(session, lease.job_id)


def floor_of(lease: Lease, decision: Decision | None) -> float | None:
    """The least acceptance length of a new draft, beside the one whose place it takes."""
    if lease.spec.attach is None or decision is None:
        return None
    return incumbent_floor(lease.spec.attach, decision.incumbent_tau)


def promotes(lease: Lease) -> bool:
    """Whether a draft whose gates hold becomes champion."""
    return lease.spec.attach is None or lease.spec.attach.promote


def register_reused(
    rt: Runtime, lease: Lease, keeper: Keeper, run: Path, earlier: list[Stage], decision: Decision
) -> Callable[[Session], None]:
    """Register a draft as it is for a new checkpoint. Returns the write that does so and ends the
    job.

    A draft that is registered for these very weights is the one that is attached; for others there
    is a row of its own, with a bundle that says for which checkpoint it is and what was measured.
    """
    started = rt.clock()
    assert decision.draft_id is not None  # noqa: S101 - a reuse names one
    with rt.db.read() as session:
        source = get_draft(session, decision.draft_id)
    summaries = {s.name: s.summary or {} for s in earlier}
    probed = next(p for p in summaries["probe"]["probed"] if p["id"] == source.id)
    metrics = _metrics(source, probed)
    gates = {"passed": True, "checks": [c.model_dump(mode="json") for c in decision.checks]}
    bundle = _bundle(rt, lease, keeper, run, source, summaries, metrics)
    result = {
        "uri": rt.store.uri(bundle.prefix),
        "metrics": metrics,
        "gates": gates,
        "artifacts": bundle.files,
        "reuses": source.id,
    }

    def write(session: Session) -> None:
        now = rt.clock()
        draft = get_draft(session, source.id)
        if _another(draft, lease, summaries["resolve"]):
            made = new_draft(lease, bundle, metrics, now)
            draft = add_draft(session, made, champion=promotes(lease), now=now)
        elif promotes(lease):
            promote(session, draft, now=now)
        attach(session, draft, now=now)
        finish_registered(session, lease, draft, bundle, result, started=started, now=now)

    return write


def _another(draft: Draft, lease: Lease, resolve: dict[str, Any]) -> bool:
    """Whether the draft is registered for other weights, or under another name."""
    here = (resolve["weights_sha256"], lease.spec.registry_name())
    return (draft.weights_sha256, draft.name) != here


def _bundle(
    rt: Runtime,
    lease: Lease,
    keeper: Keeper,
    run: Path,
    source: Draft,
    summaries: dict[str, dict[str, Any]],
    metrics: dict[str, Any],
) -> Bundle:
    folder = run / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draft = bring_draft(rt, source.id, run / "inputs" / source.id, keeper.check)
    ignored = shutil.ignore_patterns(FINGERPRINT)
    shutil.copytree(draft, folder / "draft", ignore=ignored)
    for name, stage in (
        ("target.json", "resolve"),
        (FINGERPRINT, "probe"),
        ("probe.json", "probe"),
    ):
        shutil.copyfile(output_of(run, stage) / name, folder / name)
    shutil.copyfile(run / "config.json", folder / "run-config.json")
    resolve = summaries["resolve"]
    spec = _as_measured(lease.spec, metrics)
    serving = serving_facts(spec, lease.job_id, {"resolve": resolve, "benchmark": metrics})
    (folder / "serving.json").write_bytes(canonical_json(serving))
    made = json.loads(rt.store.get_bytes(f"{source.uri}/{MANIFEST}"))
    facts = {**job_facts(lease, {"resolve": resolve, "export": made}), "reuses": source.id}
    return store_bundle(rt.store, folder, facts, keeper.check)


def _as_measured(spec: JobSpec, metrics: dict[str, Any]) -> JobSpec:
    """The job with the tree that the draft was probed with, for the flags of its engines."""
    depth, recipe = metrics["depth"], spec.resolved_recipe()
    tree = {name: metrics[name] for name in ("depth", "top_k", "total_tokens") if metrics[name]}
    train = {**spec.overrides.get("train", {}), "ttt_steps": max(depth, recipe.train.ttt_steps)}
    bench = {**spec.overrides.get("benchmark", {}), **tree}
    return spec.model_copy(
        update={"overrides": {**spec.overrides, "train": train, "benchmark": bench}}
    )


def _metrics(source: Draft, probed: dict[str, Any]) -> dict[str, Any]:
    """The figures of the probe, and what is the draft's own."""
    own = ("draft_vocab_size", "parameters", "top_k", "total_tokens")
    return {
        **{name: source.metrics.get(name) for name in own},
        **{
            name: probed[name]
            for name in (
                "tau", "tau_ci", "speedup", "speedup_ci", "acceptance_by_position", "depth",
                "plain_tokens_per_s", "draft_tokens_per_s", "lossless", "prompts",
            )
        },
        "reuses": source.metrics.get("reuses") or source.id,
        "distance": probed["distance"],
    }  # fmt: skip
