"""What a draft must reach, judged from what the stages measured."""

from __future__ import annotations

from typing import Any

from jobs.attach_decision import Check, figure_checks
from jobs.spec import Gates


def judge_gates(
    gates: Gates, summaries: dict[str, dict[str, Any]], floor: float | None = None
) -> dict[str, Any]:
    """`{passed, checks: [{name, required, measured, passed}]}` for a job's gates.

    A gate whose measure is missing has not passed.

    Args:
        floor: the least acceptance length beside the incumbent, if there is one.
    """
    bench, proof = summaries.get("benchmark", {}), summaries.get("prove", {})
    checks = []
    if gates.lossless:
        passed, said = is_lossless(summaries), proof.get("verdict")
        checks.append(Check(name="lossless", required="lossless", measured=said, passed=passed))
    if gates.parity:
        parity = summaries.get("parity", {})
        passed, broken = bool(parity.get("holds")), broken_links(parity)
        checks.append(Check(name="parity", required=True, measured=broken, passed=passed))
    checks += figure_checks(gates, bench.get("tau"), bench.get("speedup"), floor)
    return {"passed": all(c.passed for c in checks), "checks": [c.model_dump() for c in checks]}


def broken_links(parity: dict[str, Any]) -> dict[str, str]:
    """The link that broke, of each engine where one did; from the stage's summary."""
    engines: dict[str, dict[str, Any]] = parity.get("engines", {})
    return {name: str(one["broken"]) for name, one in engines.items() if one.get("broken")}


def is_lossless(summaries: dict[str, dict[str, Any]]) -> bool:
    """Whether the proof's verdict is that no token changed."""
    return bool(summaries.get("prove", {}).get("verdict") == "lossless")
