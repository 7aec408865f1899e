"""What a stage can tell its caller went wrong.

    StageError                exit  reason
    ├── BadInput                 2  bad_input           the user can fix it; retrying does not help
    ├── TargetUnavailable        3  target_unavailable  hub, gate or network; retrying may help
    ├── DiskFull                 4  disk_full
    ├── EngineFailed             5  engine_failed       a serving engine died, hung or refused
    └── Stopped                 75  stopped             TERM or INT; a checkpoint was kept

Anything else is `internal` (exit 1); `out_of_memory` is exit 1 too, with its own reason.
"""

from __future__ import annotations

import errno
import os


class StageError(Exception):
    """A failure with a reason that a caller can act on.

    Args:
        message: what the user did and what was expected.
        hint: what to do about it.
    """

    exit_code = 1
    reason = "internal"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadInput(StageError):
    exit_code = 2
    reason = "bad_input"


class TargetUnavailable(StageError):
    exit_code = 3
    reason = "target_unavailable"


class DiskFull(StageError):
    exit_code = 4
    reason = "disk_full"


class EngineFailed(StageError):
    exit_code = 5
    reason = "engine_failed"


class Stopped(StageError):
    exit_code = 75
    reason = "stopped"


def memory_is_full(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, the machine's or a GPU's."""
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def disk_is_full(error: BaseException) -> bool:
    """Whether writing failed for want of space; safetensors says so in words alone."""
    numbers = (errno.ENOSPC, errno.EDQUOT)
    named = isinstance(error, OSError) and error.errno in numbers
    return named or any(os.strerror(number) in str(error) for number in numbers)
