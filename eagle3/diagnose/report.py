"""A diagnosis for a reader, as Markdown."""

from __future__ import annotations

from eagle3.diagnose.diagnosis import Diagnosis


def page(d: Diagnosis) -> str:
    """Verdict, acceptance by cause, what the files show, what was not tried."""
    as_it_is = f"| **as it is** | | **{d.tau:.2f}** | {_rates(d.by_position)} | |"
    rows = [
        f"| {row.cause} | {row.correction} | {row.tau:.2f} | {_rates(row.by_position)} | "
        f"{'**yes**' if row.restores else 'no'} |"
        for row in d.rows
    ]
    parts = [
        f"{d.said}\n",
        f"{d.prompts} prompts, {d.tokens} answer tokens, greedy chains of {d.depth}. Of each cause "
        "the correction that does best:\n",
        "| cause | corrected | acceptance length | by position | restores |",
        "|---|---|---|---|---|",
        as_it_is,
        *rows,
        "",
    ]
    if d.signs:
        parts += ["What files and settings show:\n"]
        parts += [f"- {sign.cause}: {sign.text}" for sign in d.signs]
        parts += [""]
    if d.ruled_out and d.verdict != "nothing wrong":
        parts += [f"Ruled out: {', '.join(d.ruled_out)}.\n"]
    if d.not_tried:
        parts += [f"Nothing to try: {', '.join(d.not_tried)}.\n"]
    return "\n".join(parts)


def _rates(by_position: list[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in by_position)
