"""An attachment as a page for a pull request: what was decided, on what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.attach_decision import Decision, Tried
from jobs.attachments import Outcome
from jobs.models import Attachment, Draft, Job

HEADLINES: dict[Outcome, str] = {
    "pending": "not decided yet",
    "attached": "a new draft is attached",
    "attached_by_reuse": "a draft that exists is attached",
    "gates_failed": "no draft passed the gates",
    "incompatible": "no draft can be attached to this checkpoint",
    "failed": "the job failed",
    "cancelled": "cancelled",
}
MODES = {
    "reuse": "reused as it is",
    "warm_start": "training went on from a draft",
    "train": "trained from scratch",
    "none": "nothing was done",
}


def summary_markdown(
    attachment: Attachment,
    job: Job,
    decision: Decision | None,
    checks: Sequence[dict[str, Any]],
    draft: Draft | None,
    outcome: Outcome,
) -> str:
    """The whole page."""
    lines = [f"## Draft for `{job.target}`: {HEADLINES[outcome]}", ""]
    if decision is not None:
        lines += [f"**{MODES[decision.mode].capitalize()}.** {decision.why}.", ""]
    if job.error is not None and decision is None:
        lines += [f"{job.error['message']}", ""]
    lines += _draft_lines(draft)
    if decision is not None and decision.tried:
        lines += _tried_table(decision)
    if checks:
        lines += ["| gate | asked for | measured | |", "|---|---|---|---|"]
        lines += [_check_row(check) for check in checks]
        lines.append("")
    lines.append(f"Attachment `{attachment.id}`, job `{job.id}`.")
    return "\n".join(lines) + "\n"


def _draft_lines(draft: Draft | None) -> list[str]:
    if draft is None:
        return []
    tau, speedup = draft.metrics.get("tau"), draft.metrics.get("speedup")
    measured = "" if tau is None else f", acceptance length {tau:.2f}"
    measured += "" if speedup is None else f", {speedup:.2f}x plain decoding"
    pull = f"{draft.name}@{draft.alias.value}"
    return [
        f"`{draft.id}` ({pull}) for `{draft.target_resolved}`{measured}.",
        "",
        f"    updraft pull {draft.id} ./draft",
        "",
    ]


def _tried_table(decision: Decision) -> list[str]:
    head = [
        "| draft tried on this checkpoint | lineage | distance | acceptance length | registered "
        "| left | speedup | text is the target's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return [*head, *(_tried_row(one, decision) for one in decision.tried), ""]


def _tried_row(one: Tried, decision: Decision) -> str:
    name = f"`{one.id}`" + (" (incumbent)" if one.id == decision.incumbent else "")
    distance = "unknown" if one.distance is None else f"{one.distance:.4f}"
    if not one.fits:
        return f"| {name} | {one.lineage} | {distance} | does not fit: {one.why} | | | | |"
    low, high = one.tau_ci
    registered = "unknown" if one.registered_tau is None else f"{one.registered_tau:.2f}"
    left = "unknown" if one.retained is None else f"{one.retained:.0%}"
    text = f"{'yes' if one.lossless else '**no**'}, {one.compared_tokens} tokens"
    return (
        f"| {name} | {one.lineage} | {distance} | {one.tau:.2f} ({low:.2f} to {high:.2f}) | "
        f"{registered} | {left} | {one.speedup:.2f}x | {text} |"
    )


def _check_row(check: dict[str, Any]) -> str:
    verdict = "passed" if check["passed"] else "**missed**"
    asked, found = _figure(check["required"]), _figure(check["measured"])
    return f"| {check['name']} | {asked} | {found} | {verdict} |"


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "–" if value in (None, {}) else str(value).lower()
