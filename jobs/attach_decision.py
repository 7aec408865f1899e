"""Reuse, warm start or train: decided from what was measured, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from eagle3.config import Strict
from jobs.attach_policy import AttachPolicy
from jobs.spec import Gates

LESS = 1e-9
"""Of a comparison of figures that were added up in another order."""


class Tried(Strict):
    """A draft as it is registered, and what the probe made of it on the new checkpoint."""

    id: str
    name: str
    lineage: str
    """Why it was tried, in words."""
    incumbent: bool = False
    """Whether it is champion of the name that the new draft will have."""
    registered_tau: float | None = None
    fits: bool = False
    why: str = ""
    """Why it does not fit."""
    distance: float | None = None
    tau: float = 1.0
    tau_ci: tuple[float, float] = (1.0, 1.0)
    speedup: float = 0.0
    speedup_ci: tuple[float, float] = (0.0, 0.0)
    lossless: bool | None = None
    compared_tokens: int = 0
    same_layers: bool = False
    """Whether it reads the features that training would store."""

    @property
    def retained(self) -> float | None:
        """Share of its registered acceptance that is left here."""
        if not self.fits or self.registered_tau is None or self.registered_tau <= 1:
            return None
        return (self.tau - 1) / (self.registered_tau - 1)


class Check(Strict):
    """A gate: what it asks for and what there is."""

    name: str
    required: Any
    measured: Any
    passed: bool


class Decision(Strict):
    """What is done, with which draft, and why."""

    mode: Literal["reuse", "warm_start", "train", "none"]
    draft_id: str | None = None
    """The draft that is reused or gone on from."""
    why: str
    incompatible: bool = False
    """Of `none`: no draft fits, and none may be trained."""
    checks: tuple[Check, ...] = ()
    """Of `reuse`: the gates, as probed."""
    incumbent: str | None = None
    incumbent_tau: float | None = None
    """Its acceptance length on the new checkpoint: what a new draft is held against."""
    tried: tuple[Tried, ...] = ()


def decide(policy: AttachPolicy, gates: Gates, tried: Sequence[Tried]) -> Decision:
    """The cheapest way that is allowed and that the figures carry."""
    best = max((t for t in tried if t.incumbent and t.fits), key=lambda t: t.tau, default=None)
    evidence: dict[str, Any] = {"tried": tuple(tried)}
    if best is not None:
        evidence |= {"incumbent": best.id, "incumbent_tau": best.tau}
    by_worth = sorted((t for t in tried if t.fits), key=lambda t: t.tau, reverse=True)
    floor = incumbent_floor(policy, None if best is None else best.tau)
    if "reuse" in policy.allow:
        for one in by_worth:
            checks = reuse_checks(gates, one, floor)
            if (one.retained or 0) >= policy.reuse_above and all(c.passed for c in checks):
                why = f"{_left(one)}, and its gates hold: it serves the new checkpoint as it is"
                return Decision(mode="reuse", draft_id=one.id, why=why, checks=checks, **evidence)
    not_reused = _not_reused(policy, gates, by_worth, floor)
    start = next((t for t in by_worth if t.same_layers and _worth(t, policy)), None)
    if "warm_start" in policy.allow and start is not None:
        why = f"{_left(start)}: {not_reused}; enough to go on from"
        return Decision(mode="warm_start", draft_id=start.id, why=why, **evidence)
    if "train" in policy.allow:
        return Decision(mode="train", why=_scratch(tried, start), **evidence)
    allowed = " and ".join(policy.allow)
    what = f"{_left(by_worth[0])}: {not_reused}" if by_worth else "no draft fits this checkpoint"
    why = f"only {allowed} may be done: {what}"
    return Decision(mode="none", why=why, incompatible=not by_worth, **evidence)


def reuse_checks(gates: Gates, one: Tried, floor: float | None) -> tuple[Check, ...]:
    """The gates of a job, held against a probe."""
    checks = []
    if gates.lossless:
        passed = bool(one.lossless)
        checks.append(Check(name="lossless", required=True, measured=one.lossless, passed=passed))
    return (*checks, *figure_checks(gates, one.tau, one.speedup, floor))


def figure_checks(
    gates: Gates, tau: float | None, speedup: float | None, floor: float | None
) -> list[Check]:
    """The gates on figures; where a figure is missing its gate has not passed.

    Args:
        floor: the least acceptance length beside the incumbent, if there is one.
    """
    asked = (
        ("min_tau", gates.min_tau, tau),
        ("min_speedup", gates.min_speedup, speedup),
        ("incumbent", floor, tau),
    )
    return [
        Check(
            name=name,
            required=required,
            measured=measured,
            passed=measured is not None and measured >= required - LESS,
        )
        for name, required, measured in asked
        if required is not None
    ]


def incumbent_floor(policy: AttachPolicy, incumbent_tau: float | None) -> float | None:
    """The least acceptance length of a draft that takes the incumbent's place."""
    return None if incumbent_tau is None else incumbent_tau * (1 - policy.tolerance)


def _worth(one: Tried, policy: AttachPolicy) -> bool:
    return one.retained is not None and one.retained >= policy.warm_start_above


def _left(one: Tried) -> str:
    retained = "" if one.retained is None else f"{one.retained:.0%} of the acceptance of "
    return f"{retained}draft {one.id} is left (tau {one.tau:.2f} of {one.registered_tau or 1:.2f})"


def _not_reused(
    policy: AttachPolicy, gates: Gates, by_worth: Sequence[Tried], floor: float | None
) -> str:
    """Why the best candidate is not taken as it is."""
    if not by_worth:
        return ""
    best = by_worth[0]
    if "reuse" not in policy.allow:
        return "no draft may be reused"
    if (best.retained or 0) < policy.reuse_above:
        return f"less than the {policy.reuse_above:.0%} that reuse asks for"
    missed = [c.name for c in reuse_checks(gates, best, floor) if not c.passed]
    return f"as it is it misses {', '.join(missed)}"


def _scratch(tried: Sequence[Tried], start: Tried | None) -> str:
    if not tried:
        return "no registered draft is for a checkpoint of these sizes"
    if start is not None:
        return f"{_left(start)}, and training on from it is not allowed"
    fitting = [t for t in tried if t.fits]
    if not fitting:
        return f"none of {len(tried)} drafts fits: {tried[0].why}"
    best = max(fitting, key=lambda t: t.tau)
    return f"{_left(best)}: too little to go on from"
