"""A wall clock that can be set, for a process that has this directory on its PYTHONPATH: the
seconds in the file named by SHIFT_FILE are added to `time.time()`. Monotonic clocks go on."""

from __future__ import annotations

import os
import time
from pathlib import Path

FILE = Path(os.environ["SHIFT_FILE"])
_time = time.time


def shifted() -> float:
    """The time, as this process is told."""
    return _time() + (float(FILE.read_text() or 0) if FILE.is_file() else 0.0)


time.time = shifted
