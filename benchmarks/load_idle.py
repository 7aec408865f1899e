"""Memory of the service's own programs while they wait."""

from __future__ import annotations

import time

from benchmarks.load_figures import bounded, say, table
from benchmarks.load_service import RELAY, Service

BOUND_MIB = 400.0
SETTLED_S = 20.0


def idle(one: Service) -> bool:
    """Whether API, relay and worker together are below the bound, as proportional set size: pages
    that several share are counted once, in equal parts. As resident set size each counts all."""
    parts = [one.api(), one.part("relay", *RELAY), one.worker("worker")]
    time.sleep(SETTLED_S)
    rows, whole = [], [0.0, 0.0]
    for part in parts:
        processes = [part.process, *part.process.children(recursive=True)]
        memory = [process.memory_full_info() for process in processes]
        found = [sum(getattr(m, kind) for m in memory) / 2**20 for kind in ("pss", "rss")]
        whole = [a + b for a, b in zip(whole, found, strict=True)]
        rows.append([part.name, str(len(processes)), *(f"{one:.0f}" for one in found)])
    for part in reversed(parts):
        part.stop()
    rows.append(["all", "", *(f"{one:.0f}" for one in whole)])
    say(table(["", "processes", "PSS, MiB", "RSS, MiB"], rows))
    return bounded("PSS of all", whole[0], BOUND_MIB, "MiB")
