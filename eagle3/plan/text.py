"""A plan as plain text, for a terminal."""

from __future__ import annotations

from eagle3.plan.estimate import Plan
from eagle3.plan.modes import Mode


def describe(plan: Plan) -> str:
    """Tables of sizes, modes and stages, then what the figures rest on."""
    parts = [_sizes(plan), _modes(plan), _stages(plan), _advice(plan)]
    notes = "\n".join(f"  - {line}" for line in plan.assumptions)
    return "\n\n".join([*parts, f"Assumed:\n{notes}"])


def _sizes(plan: Plan) -> str:
    target, work = plan.target, plan.workload
    active = ""
    if target.active_parameters < target.parameters // 2:
        active = f", {_count(target.active_parameters)} a token"
    rows = [
        ("target", f"{_count(target.parameters)} parameters{active}, {_size(plan.target_bytes)}"),
        ("draft", f"{_count(plan.draft.parameters)} parameters, {_size(plan.draft_bytes)}"),
        ("hardware", str(plan.hardware)),
        ("prompts", f"{work.train_prompts:,} to train on, {work.heldout_prompts:,} held out"),
        ("tokens", f"{work.tokens:,}, of which the target writes {work.response_tokens:,}"),
        ("features", f"{_size(plan.store_bytes)} on disk ({plan.bytes_per_token:,} bytes a token)"),
    ]
    return table([], [list(row) for row in rows])


def _modes(plan: Plan) -> str:
    head = ["mode", "memory a device", "fits", "tokens a pass", "store", "hours", ""]
    return table(head, [_mode(plan, m) for m in plan.modes])


def _mode(plan: Plan, mode: Mode) -> list[str]:
    marks = [
        word
        for word, name in (("recommended", plan.recommended), ("first that fits", plan.first_fit))
        if name == mode.name
    ]
    passes = f"{mode.tokens_per_step:,}" + (f" x {mode.accumulate}" if mode.accumulate > 1 else "")
    return [
        mode.name,
        _size(mode.memory_bytes),
        "yes" if mode.fits else "no",
        passes,
        _size(mode.store_bytes) if mode.store_bytes else "none",
        _hours(mode.hours),
        ", ".join(marks) or mode.why_not,
    ]


def _stages(plan: Plan) -> str:
    priced = plan.price_per_hour is not None
    head = ["stage", "tokens", "tokens/s", "hours", *(["money"] if priced else [])]
    rows = [
        [s.name, f"{s.tokens:,}", f"{s.tokens_per_s:,.0f}", _hours(s.hours), _money(s.money)]
        for s in plan.stages
    ]
    rows.append(["all", "", "", _hours(plan.hours), _money(plan.money)])
    return table(head, [row[: len(head)] for row in rows])


def _advice(plan: Plan) -> str:
    if plan.recommended is None:
        return "No mode fits this hardware: take more or larger devices, or a smaller batch."
    mode = plan.mode(plan.recommended)
    text = f"Recommended: extract.mode {mode.features}"
    if mode.sharding != "single":
        text += f" with {mode.sharding} on {plan.hardware.count} devices"
    text += f", train.batch_tokens {mode.tokens_per_step}"
    text += f" a process, train.accumulate {mode.accumulate}" if mode.accumulate > 1 else ""
    return f"{text}, regenerate.batch_size {plan.regenerate_batch}."


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns aligned by spaces; numbers on the right."""
    lines = [head, *rows] if head else rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    right = [all(_is_number(row[i]) for row in rows) and bool(head) for i in range(len(widths))]
    texts = []
    for line in lines:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        texts.append("  ".join(cells).rstrip())
    if head:
        texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join(texts)


def _is_number(text: str) -> bool:
    return text == "" or text[0].isdigit() or text.startswith("<")


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _size(number: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number / 1e6:.0f} MB"


def _hours(hours: float) -> str:
    return f"{hours:,.2f}" if hours >= 0.01 else "<0.01"


def _money(money: float | None) -> str:
    return "" if money is None else f"{money:,.2f}"
