"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table; a bar in a cell stays in its cell."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    cells.insert(1, ["---"] * len(head))
    return ["| " + " | ".join(row) + " |" for row in cells]
