"""The draft in a serving engine, beside what it should accept there."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from eagle3.diagnose.case import Case, Sign
from eagle3.diagnose.diagnosis import Diagnosis
from eagle3.engines.engine import Engine, Sampling, Settings
from eagle3.engines.known import engine
from eagle3.errors import BadInput, EngineFailed
from eagle3.parity.agree import Rounds

ROOM = 16
NEAR = 0.9
"""An engine whose acceptance length is this share of what it should be does as it should: in an
answer's last round engines count in ways of their own."""


def served(
    diagnosis: Diagnosis, case: Case, target: Path, draft: Path, name: str, max_new_tokens: int
) -> Diagnosis:
    """The diagnosis with what the engine itself accepts: where that is less than the draft's files
    lead to, the fault lies in the engine or in how it is started.

    Raises:
        BadInput: there is no such engine, or it is not installed.
    """
    one = engine(name)
    if (hint := one.missing()) is not None:
        raise BadInput(f"{name} is not installed here", hint)
    try:
        found = _rounds(one, case, target, draft, diagnosis.depth, max_new_tokens)
    except (BadInput, EngineFailed) as e:
        sign = Sign("engine", f"{name} {one.version()} does not serve the draft: {e}")
        return _with(diagnosis, sign, blamed=diagnosis.verdict == "nothing wrong")
    accepts = (
        f"{name} {one.version()} accepts {_listed(found.by_position) or 'nothing'} by position"
    )
    if found.tau >= NEAR * diagnosis.tau:
        return _with(diagnosis, Sign("engine", f"{accepts}, as the files lead to"), blamed=False)
    text = f"{accepts}, the files lead to {_listed(diagnosis.by_position)}"
    return _with(diagnosis, Sign("engine", text, certain=True), blamed=True)


def _rounds(
    one: Engine, case: Case, target: Path, draft: Path, depth: int, max_new_tokens: int
) -> Rounds:
    context = max(map(len, case.prompts)) + max_new_tokens + depth + ROOM
    settings = Settings(draft_tokens=depth, context=context)
    with (
        tempfile.TemporaryDirectory(prefix="eagle3-diagnose-") as work,
        one.start(target, draft, settings, Path(work)) as running,
    ):
        before = running.metrics()
        running.generate(case.prompts, Sampling(max_new_tokens))
        drafted = running.metrics() - before
    return Rounds(drafted.rounds, drafted.accepted_at)


def _with(diagnosis: Diagnosis, sign: Sign, blamed: bool) -> Diagnosis:
    signs = [*diagnosis.signs, sign]
    if not blamed:
        return replace(diagnosis, signs=signs)
    causes = [*diagnosis.causes, sign.cause]
    said = f"{diagnosis.said} " if diagnosis.causes else ""
    said += f"The engine does not do what the files say: {sign.text}."
    return replace(diagnosis, verdict="cause found", causes=causes, said=said, signs=signs)


def _listed(rates: list[float]) -> str:
    return " ".join(f"{rate:.0%}" for rate in rates)
