"""A training step in a process of its own: its time, and its memory without anything else's."""

from __future__ import annotations

import multiprocessing
import re
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import torch

from benchmarks.training_case import Case, Method, Step

Field = Literal["VmRSS", "VmHWM"]


@dataclass(frozen=True)
class Measured:
    """One step."""

    loss: float
    wall: float
    """Seconds."""
    cpu: float
    """Seconds of all of the process's threads."""
    peak: int
    """The most bytes of memory that the process has had so far: resident, or the GPU's."""
    before: int
    """Bytes that it had before its first step: code, weights, moments, features."""
    supervised: list[float]


class Apart:
    """The process; it waits between steps."""

    def __init__(self, case: Case, method: Method, threads: int) -> None:
        self.method = method
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, case, method, threads))
        self._process.start()
        theirs.close()

    def step(self) -> Measured:
        """Run a step and measure it.

        Raises:
            EOFError: the process died; what killed it stands on stderr, or in the kernel's log.
        """
        self._pipe.send(True)
        measured = self._pipe.recv()
        if not isinstance(measured, Measured):
            raise TypeError(f"the process sent {measured!r}")
        return measured

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, case: Case, method: Method, threads: int) -> None:
    """Steps on demand, until the other side hangs up."""
    torch.set_num_threads(threads)
    step = Step(case, method)
    step.begin()
    before = _bytes(case, "VmRSS")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()  # a number: a GPU has then done its work
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        pipe.send(Measured(loss, wall, cpu, _bytes(case, "VmHWM"), before, step.supervised))


def _bytes(case: Case, field: Field) -> int:
    """Memory of the device that the case runs on."""
    if case.device == "cpu":
        return resident(field)
    return torch.cuda.memory_allocated() if field == "VmRSS" else torch.cuda.max_memory_allocated()


def resident(field: Field) -> int:
    """Bytes of this process in memory now (VmRSS) or at its most (VmHWM), as Linux counts them."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}: this needs Linux")
    return 1024 * int(found[1])
