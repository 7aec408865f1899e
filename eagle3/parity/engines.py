"""Which engines a run's draft must pass: those that its recipe names, or those of the default.

Settled when the target is resolved, before anything is paid for: an engine that is named and cannot
do it is the user's to mend then, not after hours of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3.config.sections import Auto, EngineName
from eagle3.engines.known import engine
from eagle3.engines.vllm import Vllm
from eagle3.errors import BadInput
from eagle3.export import gguf

OURS, LLAMA_CPP = "native", "llamacpp"
LIGHT = 2_000_000_000
"""Parameters of the largest target that llama.cpp serves unasked: 8 GB in float32, on a CPU."""

Asked = Sequence[EngineName] | Auto


@dataclass(frozen=True)
class Chosen:
    """Engines by name, ours first, and why others of the default are none of them."""

    asked: list[str] | str
    engines: list[str]
    left_out: dict[str, str]

    def record(self) -> dict[str, Any]:
        return asdict(self)


def choose(asked: Asked, target: Path, parameters: int) -> Chosen:
    """Settle which engines serve a target on this machine.

    Args:
        target: a directory as transformers saves it.

    Raises:
        BadInput: an engine that is named is not installed, or does not draft for this target.
    """
    if asked != "auto":
        for name in asked:
            _check(name, target)
        return Chosen(list(asked), list(dict.fromkeys((OURS, *asked))), {})
    if why := _unasked(target, parameters):
        return Chosen("auto", [OURS], {LLAMA_CPP: why})
    return Chosen("auto", [OURS, LLAMA_CPP], {})


def settled(
    asked: Asked, target: Path, parameters: int, earlier: Mapping[str, Any] | None
) -> Chosen:
    """The same, without asking again what was settled of this target on this machine.

    Args:
        earlier: the record of what was settled before; None where nothing was.
    """
    same = earlier is not None and earlier["asked"] == (asked if asked == "auto" else list(asked))
    if earlier is not None and same and not any(map(_missing, earlier["engines"])):
        return Chosen(**earlier)
    return choose(asked, target, parameters)


def installed(asked: Asked) -> dict[str, str]:
    """Versions of those engines, as far as they are installed here."""
    found = [engine(name) for name in ((OURS, LLAMA_CPP) if asked == "auto" else asked)]
    return {one.name: one.version() for one in found if one.missing() is None}


def _missing(name: str) -> str | None:
    return engine(name).missing()


def _check(name: str, target: Path) -> None:
    if (hint := _missing(name)) is not None:
        raise BadInput(f"engines names {name}, which is not installed here", hint)
    if name == LLAMA_CPP:
        gguf.check_target(target)
    if name == Vllm.name:
        Vllm().check_target(target)


def _unasked(target: Path, parameters: int) -> str:
    """Why llama.cpp is left out where nobody asked for it; empty where it is not."""
    if parameters > LIGHT:
        return f"by default it serves targets of {LIGHT / 1e9:g} B parameters at most"
    if _missing(LLAMA_CPP) is not None:
        return "it is not installed here"
    try:
        gguf.check_target(target)
    except BadInput as e:
        return " ".join(str(e).split())
    return ""
