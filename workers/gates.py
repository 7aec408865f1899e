"""What a draft must reach, judged from what the stages measured."""

from __future__ import annotations

from typing import Any

from jobs.spec import Gates


def judge_gates(gates: Gates, summaries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`{passed, checks: [{name, required, measured, passed}]}` for a job's gates.

    A gate whose measure is missing has not passed.
    """
    bench, proof = summaries.get("benchmark", {}), summaries.get("prove", {})
    checks = []
    if gates.lossless:
        checks.append(_check("lossless", "lossless", proof.get("verdict"), is_lossless(summaries)))
    for name, required, measured in (
        ("min_tau", gates.min_tau, bench.get("tau")),
        ("min_speedup", gates.min_speedup, bench.get("speedup")),
    ):
        if required is not None:
            reached = isinstance(measured, int | float) and measured >= required
            checks.append(_check(name, required, measured, reached))
    return {"passed": all(c["passed"] for c in checks), "checks": checks}


def is_lossless(summaries: dict[str, dict[str, Any]]) -> bool:
    """Whether the proof's verdict is that no token changed."""
    return bool(summaries.get("prove", {}).get("verdict") == "lossless")


def _check(name: str, required: Any, measured: Any, passed: bool) -> dict[str, Any]:
    return {"name": name, "required": required, "measured": measured, "passed": passed}
