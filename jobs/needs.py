"""What a stage needs of a worker and what a worker has: `cpu`, `gpu`, `gpux2`, `gpu:h100`,
`gpu:h100x8`, or `any`.

`any` runs everywhere and uses what it finds; `cpu` runs everywhere and sees no GPU. A worker serves
every need that it fulfils, so that a claim is one `IN`, and each need has a queue of its own for
hints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANY = "any"
CPU = "cpu"
MAX_GPUS = 64
NEEDS_PATTERN = r"^(any|cpu|gpu(:[a-z0-9]+?)?(x[1-9][0-9]?)?)$"
_PARTS = re.compile(r"gpu(?::([a-z0-9]+?))?(?:x([1-9][0-9]?))?")

LIGHT = frozenset({"resolve", "prepare", "export", "register"})
"""Stages that load no model on a device: any worker does, whatever their job needs."""


@dataclass(frozen=True)
class Gpus:
    """Some GPUs of one kind; no `kind` is any kind, and a `count` of 0 is none."""

    kind: str = ""
    count: int = 0

    def __str__(self) -> str:
        if not self.count:
            return CPU
        kind = f":{self.kind}" if self.kind else ""
        return f"gpu{kind}" + (f"x{self.count}" if self.count > 1 else "")


def parse_gpus(text: str) -> Gpus:
    """The GPUs in a need or in what a worker has; none in `cpu` and `any`.

    Raises:
        ValueError: it is none of the forms.
    """
    if text in (ANY, CPU):
        return Gpus()
    found = _PARTS.fullmatch(text)
    if found is None or int(found[2] or 1) > MAX_GPUS:
        raise ValueError(
            f"{text!r}: expected any, cpu, gpu, gpux2, gpu:h100 or gpu:h100x8, at most "
            f"{MAX_GPUS} GPUs"
        )
    return Gpus(found[1] or "", int(found[2] or 1))


def stage_needs(stage: str, asked: str) -> str:
    """What a stage of a job that asked for `asked` needs."""
    if stage in LIGHT:
        return CPU
    return asked if asked in (ANY, CPU) else str(parse_gpus(asked))


def serves(has: Gpus) -> list[str]:
    """Every need that a worker fulfils, the greatest first."""
    counts = range(has.count, 0, -1)
    kinds = [has.kind, ""] if has.kind else [""]
    return [str(Gpus(kind, n)) for kind in kinds for n in counts] + [ANY, CPU]


def taken(needs: str, has: Gpus) -> int:
    """How many GPUs of a worker a stage takes."""
    if needs == ANY:
        return has.count
    return parse_gpus(needs).count


def queue_of(needs: str) -> str:
    """Name of the broker's queue for hints of such stages."""
    return "updraft" if needs in (ANY, CPU) else "updraft." + needs.replace(":", ".")
