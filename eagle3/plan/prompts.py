"""How many prompts a run will have, before its sets are read."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

from eagle3.config import PromptRef, PromptsConfig
from eagle3.plan.lookup import Unreachable
from eagle3.plan.shape import Figures

LOOKED_AT = 64 * 2**20
"""Bytes of a file whose lines are counted; the rest is taken to be like them."""

Rows = Callable[[PromptRef], int]
"""Asks the hub for the rows of a data set's split; raises Unreachable."""


class PromptCount(Figures):
    """Prompts of a run, at most: copies are left out later."""

    train: int
    heldout: int


def count_prompts(prompts: PromptsConfig, hub_rows: Rows) -> PromptCount:
    """Count the prompts of a run.

    Raises:
        Unreachable: a set whose size only reading it tells, with `prompts.limit` empty.
    """
    try:
        counts = [_count(source.ref, hub_rows) for source in prompts.sources]
    except Unreachable:
        if prompts.limit is None:
            raise
        counts = [(prompts.limit, 0)]
    marked = sum(heldout for _, heldout in counts)
    total = sum(train + heldout for train, heldout in counts)
    if prompts.limit is not None:
        total = min(total, prompts.limit)
    # A set without marks of its own gives a quarter at most.
    heldout = min(marked or prompts.heldout, total if marked else max(1, total // 4))
    return PromptCount(train=max(1, total - heldout), heldout=heldout)


def _count(ref: PromptRef, hub_rows: Rows) -> tuple[int, int]:
    """Prompts of one set: without a mark or for training, and those marked as held out."""
    match ref.kind:
        case "demo":
            folder = resources.files("eagle3").joinpath("data", "demo")
            lines = {f.name: len(f.read_text().splitlines()) for f in folder.iterdir()}
            heldout = lines.pop("heldout.jsonl")
            return sum(n for name, n in lines.items() if name.endswith(".jsonl")), heldout
        case "hub":
            return hub_rows(ref), 0
        case "path" if ref.location.endswith(".jsonl"):
            return _lines(Path(ref.location).expanduser()), 0
        case _:
            named = ref.location
            raise Unreachable(f"{named}: how many prompts it holds is known when it is read")


def _lines(path: Path) -> int:
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            head = f.read(LOOKED_AT)
    except OSError as e:
        raise Unreachable(f"{path}: {e.strerror}") from None
    lines = sum(1 for line in head.split(b"\n") if line.strip())
    return lines if size <= LOOKED_AT else round(lines * size / LOOKED_AT)
