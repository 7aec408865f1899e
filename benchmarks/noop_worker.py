"""A real worker whose every stage ends at once, without a process: for `load.py noop`."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

import workers.stage
from jobs.endings import finish
from jobs.leases import Lease
from workers.app import app
from workers.keeper import Keeper
from workers.runtime import Runtime

__all__ = ["app"]


def _nothing(rt: Runtime, lease: Lease, keeper: Keeper) -> Callable[[Session], None]:
    return lambda session: finish(session, lease, now=rt.clock(), summary={}, seconds=0.0)


workers.stage._work = _nothing
