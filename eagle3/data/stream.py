"""Features from a process of its own, which reads the next batches while training uses one.

    training ── requests, at most `queue_batches` unanswered ──► extraction process
             ◄── answers, taken in by a thread ──────────────────

A new batch is asked for when one is taken, so the process waits when training is slow
(back-pressure), and what is in memory is bounded. When it dies, the pipe ends, the thread sees it,
and whoever waits for an answer gets the reason.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import torch

from eagle3.data.features import Columns, FeatureIndex, Sample, SampleRef
from eagle3.data.frames import Answer, Request, Setup, read_answer, split_samples
from eagle3.data.online import Recent, Unstored
from eagle3.errors import BadInput, DiskFull, StageError, TargetUnavailable

END_SECONDS = 5.0
"""The process may finish its forward for so long after it was told to end."""

SAID_BYTES = 2000
"""The end of what a dead process said on stderr."""

ERRORS: dict[str, type[StageError]] = {
    kind.reason: kind for kind in (BadInput, TargetUnavailable, DiskFull)
}


class StreamedSource(Unstored):
    """Asks an extraction process for samples.

    Args:
        target: the target's directory; the process loads it itself.
        ahead: batches that may be waiting for training.
        device: where the target runs, in `dtype`.
        command: the extraction process.
    """

    def __init__(
        self,
        index: FeatureIndex,
        responses: Path,
        target: Path,
        ahead: int = 2,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        command: tuple[str, ...] = (sys.executable, "-m", "eagle3.data.streamer"),
    ) -> None:
        super().__init__(index, responses)
        self._ahead = ahead
        self._recent = Recent()
        self._number = 0
        self._answers: dict[int, Columns] = {}
        self._unwanted: set[int] = set()
        self._failure: Exception | None = None
        self._arrived: queue.Queue[tuple[Answer, Columns] | None] = queue.Queue()
        self._said = tempfile.TemporaryFile()
        self._process = _start(command, self._said)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="stream", daemon=True
        )
        self._reader.start()
        setup = Setup(
            target=str(target),
            capture_layers=index.capture_layers,
            responses=str(responses),
            device=device,
            dtype=str(dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
        )
        self._send(setup)

    def load(self, ref: SampleRef) -> Sample:
        """One sample; it is read after the batches that have been asked for."""
        known = self._recent.get(ref.id)
        return known or self._recent.put(*self._take(self._ask([ref]), [ref]))

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        refs = iter(order)
        waiting = deque((self._ask(batch), batch) for batch in islice(refs, self._ahead))
        try:
            while waiting:
                samples = self._take(*waiting.popleft())
                waiting.extend((self._ask(batch), batch) for batch in islice(refs, 1))
                yield samples
        finally:
            self._unwanted |= {number for number, _ in waiting}

    def settle(self) -> None:
        """Every process has a target of its own."""

    def close(self) -> None:
        """End the process. It holds nothing that could be lost, so it is not waited for long."""
        with contextlib.suppress(BrokenPipeError):  # it has ended before
            self._requests.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._said.close()

    def _ask(self, refs: list[SampleRef]) -> int:
        self._number += 1
        self._send(Request(number=self._number, places=[self.place[ref.id] for ref in refs]))
        return self._number

    def _send(self, message: Setup | Request) -> None:
        try:
            self._requests.write(message.model_dump_json().encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            while True:
                self._next()  # ends with the reason

    def _take(self, number: int, refs: list[SampleRef]) -> list[Sample]:
        """Wait for the answer to a request."""
        while number not in self._answers:
            answer, columns = self._next()
            if answer.number in self._unwanted:
                self._unwanted.remove(answer.number)
            else:
                self._answers[answer.number] = columns
        return split_samples(self._answers.pop(number), [self.sequence(ref) for ref in refs])

    def _read(self, answers: IO[bytes]) -> None:
        """The thread: it takes in what comes, so that the process never waits on a full pipe."""
        try:
            with answers:
                while (found := read_answer(answers)) is not None:
                    self._arrived.put(found)
        except Exception as e:  # passed on: whoever waits must hear of it
            self._arrived.put((Answer(reason="internal", message=f"unreadable answer: {e}"), {}))
        finally:
            self._arrived.put(None)

    def _next(self) -> tuple[Answer, Columns]:
        """The next answer to arrive; the error of a process that has failed, now and ever after."""
        if self._failure is None:
            arrived = self._arrived.get()
            if arrived is not None and not arrived[0].reason:
                return arrived
            self._failure = _told(arrived[0]) if arrived else RuntimeError(self._ending())
        raise self._failure

    def _ending(self) -> str:
        """How a process ended that gave no reason."""
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "the extraction process closed its output and did not end"
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - SAID_BYTES))
        said = self._said.read().decode(errors="replace").strip()
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (often because memory ran out)" if code == -signal.SIGKILL else ""
        else:
            how = f"ended with code {code}"
        return f"the extraction process {how} " + (f"and said: {said}" if said else "in silence")


def _told(answer: Answer) -> Exception:
    """The error that a process told before it ended."""
    if answer.reason in ERRORS:
        return ERRORS[answer.reason](answer.message, answer.hint)
    text = f"the extraction process failed: {answer.message}"
    return MemoryError(text) if answer.reason == "out_of_memory" else RuntimeError(text)


def _start(command: tuple[str, ...], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process with TERM and INT blocked: whoever stops a training signals its whole
    group, and this process is to end when training has."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
