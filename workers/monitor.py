"""What a stage has of its machine, under the names of MLflow's own monitoring, so that a run's page
shows it as system metrics."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

EVERY_S = 10.0
ASK = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
ASK_S = 20.0


class Monitor:
    """While entered, `put` is given the machine's figures every `EVERY_S`, from a thread of its
    own: a GPU's driver may take seconds to answer."""

    def __init__(self, put: Callable[[dict[str, float]], None]) -> None:
        self.put = put
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()  # nobody waits for a driver

    def _run(self) -> None:
        psutil.cpu_percent()  # the first call has nothing to compare with
        while not self._left.wait(EVERY_S):
            self.put({**machine(), **gpus()})


def machine() -> dict[str, float]:
    """CPU (since the last call) and memory of the whole machine."""
    memory = psutil.virtual_memory()
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": round(memory.used / 1e6, 1),
        "system/system_memory_usage_percentage": memory.percent,
    }


def gpus() -> dict[str, float]:
    """Use of each GPU, as its driver says; nothing where there is none, or it does not answer."""
    if not shutil.which(ASK[0]):
        return {}
    try:
        said = subprocess.run(ASK, capture_output=True, text=True, timeout=ASK_S, check=True)
        rows = [[float(x) for x in line.split(",")] for line in said.stdout.splitlines()]
    except (subprocess.SubprocessError, OSError, ValueError):  # "[N/A]" is what some GPUs say
        return {}
    found = {}
    for index, busy, used, total in rows:
        gpu = f"system/gpu_{index:.0f}"
        found[f"{gpu}_utilization_percentage"] = busy
        found[f"{gpu}_memory_usage_megabytes"] = round(used * 1.048576, 1)
        found[f"{gpu}_memory_usage_percentage"] = round(100 * used / total, 1)
    return found
