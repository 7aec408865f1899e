"""From a case to a verdict: every cause is tried, and the one that restores acceptance is named.

A correction counts where it raises the acceptance length by more than chance: by `LEAST` at least,
with the 95% interval of the gain above 0. The best one is applied, and all are tried once more on
top of it, so that two faults in one draft are both found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from eagle3.diagnose import around, usage, weights
from eagle3.diagnose.case import Case, Cause, Finder, Sign, Trial
from eagle3.diagnose.evidence import Measured
from eagle3.diagnose.flags import flags

FINDERS: tuple[Finder, ...] = (
    weights.missing,
    weights.shapes,
    weights.broken,
    flags,
    weights.d2t,
    usage.layers,
    weights.order,
    usage.norms,
    usage.rope,
    usage.heads,
    weights.exchanged,
    weights.of_target,
    usage.overflow,
    weights.embedding,
    around.target,
    around.domain,
    around.coverage,
)
WHEN_LOW: tuple[Finder, ...] = (around.template,)
"""Other text may be accepted better without any fault, so it is asked for only then."""
CAUSES: tuple[Cause, ...] = get_args(Cause)
BOUNDS: tuple[Cause, ...] = (
    "tokenizer or template",
    "draft vocabulary coverage",
    "domain shift",
)
"""Causes that other text, or a bound, shows; the more special one first."""
OUTSIDE: tuple[Cause, ...] = (
    "missing tensors",
    "tensor shapes",
    "broken values",
    "engine flags",
    "engine",
)
"""Faults that a file or a command line has for certain, whatever is measured."""

LEAST = 0.1
"""A gain in acceptance length below this is not worth a name."""
BOUND_LEAST = 0.3
"""The same of other text: acceptance differs from text to text without any fault."""
LOW = 1.3
"""An acceptance length below this does not pay in any engine (docs/decoding.md)."""
NEAR = 0.02
"""Of the best gain: corrections that near to it do as well, and the first of them is named."""
ROUNDS = 2

Verdict = Literal["nothing wrong", "cause found", "low, no cause found"]
EXIT_CODES: dict[Verdict, int] = {"nothing wrong": 0, "cause found": 1, "low, no cause found": 6}


@dataclass(frozen=True)
class Row:
    """A correction and the acceptance with it."""

    cause: Cause
    correction: str
    tau: float
    by_position: list[float]
    gain: tuple[float, float]
    """95% interval of the gain in acceptance length over the draft as it is."""
    restores: bool


@dataclass(frozen=True)
class Diagnosis:
    verdict: Verdict
    said: str
    """The verdict in a sentence or two."""
    causes: list[Cause]
    """What is wrong; the first is what keeps acceptance down most."""
    corrections: list[str]
    tau: float
    """Of the draft as it is."""
    by_position: list[float]
    corrected_tau: float
    rows: list[Row]
    """The best correction of each cause that was tried, by cause."""
    signs: list[Sign]
    ruled_out: list[Cause]
    not_tried: list[Cause]
    """What there was nothing to try with."""
    prompts: int
    tokens: int
    depth: int

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Tried:
    trial: Trial
    measured: Measured
    gain: tuple[float, float]

    @property
    def kind(self) -> Cause | None:
        """The cause, of what is no correction of the draft."""
        return self.trial.cause if self.trial.bound else None

    def gained(self, before: Measured) -> float:
        return self.measured.tau - before.tau

    def restores(self, before: Measured) -> bool:
        least = BOUND_LEAST if self.trial.bound else LEAST
        return self.gain[0] > 0 and self.gained(before) >= least


def diagnose(case: Case, expected: float = LOW) -> Diagnosis:
    """Try every cause.

    Args:
        expected: acceptance length below which the draft accepts too little.
    """
    before = case.answers.measure(case.reading)
    low = before.tau < expected
    signs, tried = _try(case, before, FINDERS + WHEN_LOW * low)
    certain = [sign for sign in signs if sign.certain]
    causes: list[Cause] = list(dict.fromkeys(sign.cause for sign in certain))
    corrections: list[str] = []
    best = _best(tried, before)
    after, now = before, case
    while best is not None and len(corrections) < ROUNDS:
        if best.trial.cause not in causes:
            causes.append(best.trial.cause)
        corrections.append(best.trial.correction)
        after = best.measured
        if best.trial.bound:
            break
        now = replace(now, reading=best.trial.reading, answers=best.trial.answers or now.answers)
        _, again = _try(now, after, FINDERS, set(causes))
        best = _best([one for one in again if not one.trial.bound], after)
    if low and not causes:
        causes = _suspects(signs)
    rows = list(_rows(tried, before))
    seen = {row.cause for row in rows} | {sign.cause for sign in signs}
    verdict: Verdict = "nothing wrong"
    if low or causes:
        verdict = "cause found" if causes else "low, no cause found"
    total = before.total
    ruled_out = [c for c in CAUSES if c in {row.cause for row in rows} and c not in causes]
    return Diagnosis(
        verdict,
        _said(verdict, causes, corrections, signs, before, after, expected),
        causes,
        corrections,
        before.tau,
        total.by_position,
        after.tau,
        rows,
        signs,
        ruled_out,
        [cause for cause in CAUSES if cause not in seen and cause not in OUTSIDE],
        len(case.answers.found),
        sum(len(a.ids) - a.start for a in case.answers.found),
        case.answers.depth,
    )


def _try(
    case: Case, before: Measured, finders: Sequence[Finder], known: Collection[Cause] = ()
) -> tuple[list[Sign], list[_Tried]]:
    """What every cause but those that are known already shows, and gives when it is corrected."""
    signs: list[Sign] = []
    tried: list[_Tried] = []
    for finder in finders:
        for found in finder(case):
            if isinstance(found, Sign):
                signs.append(found)
            elif found.cause not in known:
                answers = found.answers or case.answers
                measured = answers.measure(found.reading)
                tried.append(_Tried(found, measured, measured.gain_over(before)))
    return signs, tried


def _best(tried: Sequence[_Tried], before: Measured) -> _Tried | None:
    """The correction to name: the best one, or the first that does nearly as well. What is no
    correction of the draft counts where no correction does half as well, in the order of `BOUNDS`:
    a bound says least of all."""
    found = [one for one in tried if one.restores(before)]
    most = max((one.gained(before) for one in found), default=0.0)
    for kind in (None, *BOUNDS):
        part = [one for one in found if one.kind == kind]
        gain = max((one.gained(before) for one in part), default=0.0)
        if part and gain >= most / 2:
            return next(one for one in part if one.gained(before) >= gain * (1 - NEAR))
    return None


def _suspects(signs: Sequence[Sign]) -> list[Cause]:
    """What files show, where acceptance is low and no correction restores it."""
    return list(dict.fromkeys(sign.cause for sign in signs if sign.cause in _SUSPECT))[:1]


_SUSPECT: tuple[Cause, ...] = (
    "d2t semantics",
    "head or norm of the target",
    "wrong target or revision",
    "tokenizer or template",
)


def _rows(tried: Sequence[_Tried], before: Measured) -> Iterator[Row]:
    """The best correction of each cause."""
    for cause in CAUSES:
        of_cause = [one for one in tried if one.trial.cause == cause]
        if of_cause:
            best = max(of_cause, key=lambda one: one.measured.tau)
            total = best.measured.total
            yield Row(
                cause,
                best.trial.correction,
                total.length,
                total.by_position,
                best.gain,
                best.restores(before),
            )


def _said(
    verdict: Verdict,
    causes: Sequence[Cause],
    corrections: Sequence[str],
    signs: Sequence[Sign],
    before: Measured,
    after: Measured,
    expected: float,
) -> str:
    if verdict == "nothing wrong":
        return f"Nothing wrong: acceptance length {before.tau:.2f}, and no correction raises it."
    if verdict == "low, no cause found":
        return (
            f"Acceptance length {before.tau:.2f}, below {expected:.2f}, and no correction raises "
            "it. What is ruled out is listed; what remains is a draft that learned too little, or "
            "another target."
        )
    shown = [sign.text for sign in signs if sign.cause == causes[0]]
    parts = [f"The cause is {' and '.join(causes)}{': ' + '; '.join(shown) if shown else ''}."]
    if corrections:
        parts.append(
            f"Corrected ({', then '.join(corrections)}), the acceptance length is "
            f"{after.tau:.2f}; as it is, {before.tau:.2f}."
        )
    else:
        parts.append(f"Acceptance length as it is: {before.tau:.2f}; it cannot be corrected here.")
    return " ".join(parts)
