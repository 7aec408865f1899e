"""Whether the processes that a test has seen are gone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def alive(processes: Iterable[psutil.Process]) -> list[list[str]]:
    """Command lines of those that still run; one that ended and was not waited for does not."""
    lines = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a zombie's `cmdline` raises a kind of it
            if process.is_running():
                lines.append(process.cmdline())
    return lines
