"""What MLflow is told of a draft: figures, tags, a text to read, and what it learned from."""

from __future__ import annotations

from typing import Any

from eagle3.plan import FORMATS
from jobs.models import Draft
from jobs.registry import Dataset, Point, flat, texts

Summaries = dict[str, dict[str, Any]]
"""Of the job's stages, by name; each with its `stage_digest`."""

COUNTED = ("train", "heldout", "prompt_tokens")


def description(draft: Draft, summaries: Summaries) -> str:
    """What stands on the page of the version and of the run, in Markdown."""
    found, proved = draft.metrics, summaries.get("prove", {})
    lines = [f"EAGLE-3 draft `{draft.id}` for `{draft.target_resolved}`."]
    if found.get("tau") is not None:
        lines.append(f"- **Acceptance length {_with_interval(found, 'tau')}**")
    if found.get("speedup") is not None:
        where = summaries.get("benchmark", {}).get("verdict", "measured")
        speed = _with_interval(found, "speedup", "x")
        lines.append(f"- **{speed} plain decoding** where it was measured ({where})")
    if proved.get("tokens"):
        lines.append(
            f"- Output: {proved['verdict']}; {proved['tokens']:,} tokens of {proved['prompts']} "
            f"prompts compared with the target's own, {proved['mismatches']} differences"
        )
    for name, one in sorted((found.get("engines") or {}).items()):
        said = one["broken"] or one["said"]
        lines.append(f"- {name} {one['version']}: {said}")
    lines.append(f"- Serve it: `updraft serve {draft.id}`; its files: `updraft pull {draft.id}`")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _with_interval(found: dict[str, Any], name: str, unit: str = "") -> str:
    interval = found.get(f"{name}_ci")
    between = f" (95% {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    return f"{found[name]:.2f}{unit}{between}"


def dataset(summaries: Summaries) -> Dataset | None:
    """The prompts that the draft was trained on, if they were prepared."""
    prepared = summaries.get("prepare", {})
    if not prepared.get("stage_digest"):
        return None
    counted = {k: int(prepared[k]) for k in COUNTED if k in prepared}
    return Dataset(str(prepared.get("source", "prompts")), prepared["stage_digest"], counted)


def figures(draft: Draft, summaries: Summaries) -> Point:
    """The final figures as metrics of the run, at the last training step."""
    named = {
        "eval/tau": draft.metrics.get("tau"),
        "eval/speedup": draft.metrics.get("speedup"),
        "eval/best_acceptance_length": draft.metrics.get("acceptance_length"),
        "eval/plain_tokens_per_s": draft.metrics.get("plain_tokens_per_s"),
        "eval/draft_tokens_per_s": draft.metrics.get("draft_tokens_per_s"),
    }
    by_position = draft.metrics.get("acceptance_by_position") or []
    # Not `eval/acceptance_n`, which is that of the training's own chains.
    named.update({f"benchmark/acceptance_{i}": x for i, x in enumerate(by_position)})
    values = {k: float(v) for k, v in named.items() if isinstance(v, int | float)}
    step = int(summaries.get("train", {}).get("steps") or 0)
    return Point(step, int(draft.created_at.timestamp() * 1000), values)


def run_tags(draft: Draft, summaries: Summaries, result: dict[str, Any]) -> dict[str, str]:
    system = flat(result.get("system", {}), "system.")
    facts = {
        "draft_id": draft.id,
        "base_model_revision": draft.target_resolved.partition("@")[2],
        "dataset_digest": summaries.get("prepare", {}).get("stage_digest"),
        "mlflow.note.content": description(draft, summaries),
        **system,
    }
    return texts(facts)


def version_tags(draft: Draft, summaries: Summaries, result: dict[str, Any]) -> dict[str, str]:
    """What binds a draft to its target, and what a deployment looks at."""
    resolve, export = summaries.get("resolve", {}), summaries.get("export", {})
    tags = {
        "draft_id": draft.id,
        "base_model": draft.target,
        "base_model_resolved": draft.target_resolved,
        "base_model_revision": draft.target_resolved.partition("@")[2],
        "base_config_sha256": resolve.get("config_sha256"),
        "weights_sha256": draft.weights_sha256,
        "tokenizer_sha256": draft.tokenizer_sha256,
        "template_sha256": draft.template_sha256,
        "aux_layers": ",".join(str(x) for x in draft.capture_layers),
        "aux_layers_convention": export.get("convention"),
        "draft_vocab_size": export.get("draft_vocab_size"),
        "draft_vocab_sha256": export.get("draft_vocab_sha256"),
        "manifest_sha256": draft.manifest_sha256,
        "acceptance_length": draft.metrics.get("acceptance_length"),
        "tau": draft.metrics.get("tau"),
        "speedup": draft.metrics.get("speedup"),
        "lossless": str(draft.metrics.get("lossless")).lower(),
        "serving_formats": ",".join(FORMATS),
        "gate": "passed" if result.get("gates", {}).get("passed") else "not passed",
        **_engine_tags(draft.metrics.get("engines") or {}),
    }
    return texts(tags)


def _engine_tags(engines: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Which engines loaded the draft, in which version, and what they made of it."""
    tags = {"engines": ",".join(sorted(name for name, one in engines.items() if not one["broken"]))}
    for name, one in engines.items():
        tags[f"engine.{name}"] = str(one["version"])
        tags[f"parity.{name}"] = str(one["broken"] or "agrees")
        tags[f"tau.{name}"] = f"{one['tau']:.3f}"
    return tags
