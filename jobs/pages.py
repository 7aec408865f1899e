"""A list, page by page: newest first, each page after the id that the one before ended with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows, newest first, and the `after` of the next page (None on the last)."""

    items: list[T]
    next_after: str | None


def page_of(rows: list[T], limit: int, id_of: Callable[[T], str]) -> Page[T]:
    """A page of the rows that a query has found.

    Args:
        rows: one more than `limit`, where there are so many.
    """
    return Page(rows[:limit], id_of(rows[limit - 1]) if len(rows) > limit else None)
