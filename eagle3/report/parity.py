"""The report's section on engines: each against the trainer's chain, and which link broke."""

from __future__ import annotations

from typing import Any

from eagle3.report.blocks import Block, Heading, Table, Text
from eagle3.report.facts import Facts


def parity(facts: Facts) -> list[Block]:
    """Nothing where the stage has not run."""
    if not facts.parity:
        return []
    left_out = facts.summary("parity")["left_out"]
    return [
        Heading("In the engines that serve it"),
        *comparison(facts.parity),
        *(Text(f"{name} was not tried: {why}.") for name, why in left_out.items()),
    ]


def comparison(found: dict[str, Any]) -> list[Block]:
    """A record of parity as a table, and what broke."""
    depth = int(found["depth"])
    head = ("", "acceptance length", *(f"position {n}" for n in range(depth)), "greedy text", "")
    trained = tuple(f"{rate:.1%}" for rate in found["by_position"])
    rows = [("the trainer's chain", f"{found['tau']:.2f}", *trained, "", "")]
    rows += [_row(engine, depth) for engine in found["engines"]]
    return [
        Text(
            f"Greedy chains of {depth} on {found['prompts']} held-out prompts, {found['tokens']} "
            f"new tokens, {found['dtype']}: how often each drafted token was accepted, given that "
            "all before it were. It agrees with training where it lies within 3 percentage points, "
            "or where the 95% interval of the difference holds 0. Greedy text must be the "
            "target's own."
        ),
        Table(head, rows),
        *(
            Text(f"{engine['engine']}: {engine['broken']}: {engine['said']}")
            for engine in found["engines"]
            if engine["broken"]
        ),
    ]


def _row(engine: dict[str, Any], depth: int) -> tuple[str, ...]:
    places = engine["positions"]
    rates = [f"{p['found']:.1%}" + ("" if p["agrees"] else " (apart)") for p in places]
    text, alike = engine["text"], engine.get("alike")
    same = f"{text['equal']} of {text['prompts']} identical" if text else "–"
    same += f", {alike} alike with and without the draft" if alike is not None else ""
    return (
        f"{engine['engine']} {engine['version']}",
        f"{engine['tau']:.2f}" if places else "–",
        *rates,
        *["–"] * (depth - len(rates)),
        same,
        f"broken: {engine['broken']}" if engine["broken"] else "agrees",
    )
