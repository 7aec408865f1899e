"""Runs loads on an engine, with and without the draft in turn.

One turn measures every draft length once, the target alone among them; the next turn begins with
another of them. So a slow moment of the machine, or a warm one, falls on all alike, and each run is
compared with the plain one of its own turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from eagle3.engines.engine import Engine, Running, Sampling, Settings
from eagle3.errors import EngineFailed
from eagle3.throughput.load import Generator, Load, Own, Prompts, Streaming
from eagle3.throughput.samples import Cell, Sample, Samples, sample

WARM_TOKENS = 16


@dataclass(frozen=True)
class Plan:
    """What every run has in common."""

    prompts: Prompts
    output_tokens: int
    """Each answer has so many, whatever ends it otherwise: lengths are alike with and without."""
    rounds: int = 5
    """Runs of each cell."""
    waves: int = 4
    """Requests of a run for each answer in progress."""
    fewest: int = 8
    """Requests of a run, at least."""
    together: bool = False
    """Servers of all draft lengths stay up; otherwise one at a time, loaded anew for each turn."""

    def load(self, cell: Cell) -> Load:
        at_once = cell.concurrency or 1
        requests = max(self.fewest, self.waves * at_once)
        if cell.rate is not None:
            requests = max(requests, len(self.prompts))
        return Load(requests, cell.concurrency, cell.rate)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.output_tokens, ignore_eos=True)


class Lab:
    """An engine, and all that was measured on it; a context manager that stops its servers.

    Args:
        settings: of every server, with slots for the highest concurrency.
        tell: what is being done, for people.
        check_stop: called between runs; raises to stop.
        keep: called with each sample.
    """

    def __init__(
        self,
        engine: Engine,
        target: Path,
        draft: Path,
        settings: Settings,
        plan: Plan,
        generator: Generator,
        work: Path,
        tell: Callable[[str], None] = lambda text: None,
        check_stop: Callable[[], None] = lambda: None,
        keep: Callable[[Sample], None] = lambda sample: None,
    ) -> None:
        self.engine, self.target, self.draft, self.settings = engine, target, draft, settings
        self.plan, self.generator, self.work = plan, generator, work
        self.samples = Samples()
        self._tell, self._check_stop, self._keep = tell, check_stop, keep
        self._up: dict[tuple[int, int], Running] = {}
        self._stack = ExitStack()
        self._turn = 0
        self._streams = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._up.clear()

    def measure(self, wanted: Collection[Cell]) -> None:
        """Run these cells in alternation with plain decoding under their loads."""
        cells = {*wanted, *(cell.plain for cell in wanted)}
        lengths = sorted({cell.drafted for cell in cells})
        for turn in range(self.plan.rounds if cells else 0):
            begin = turn % len(lengths)
            for drafted in lengths[begin:] + lengths[:begin]:
                alike = sorted(cell for cell in cells if cell.drafted == drafted)
                self._tell(f"turn {turn + 1} of {self.plan.rounds}, {_said(drafted)}")
                for cell in alike:
                    self._check_stop()
                    self._run(cell)
                if not self.plan.together:
                    self._stop()
            self._turn += 1

    def _run(self, cell: Cell) -> None:
        running = self._running(cell)
        load = self.plan.load(cell)
        before = running.metrics()
        heard = self.generator.run(running, self.plan.prompts, load, self.plan.sampling)
        if cell.drafted and not self.generator.counts:  # greedy: accepted alike when asked again
            Own().run(running, self.plan.prompts, load, self.plan.sampling)
        found = sample(self._turn, cell, load, heard, running.metrics() - before)
        _check(found, self.plan.output_tokens)
        self.samples.all.append(found)
        self._keep(found)

    def _running(self, cell: Cell) -> Running:
        """A warm engine. One without a server decodes all its slots at once, so that it is started
        for each number of answers in progress; a server takes fewer than it has room for."""
        most = self.settings.slots
        slots = most if self._streams else cell.concurrency or most
        if (cell.drafted, slots) in self._up:
            return self._up[cell.drafted, slots]
        running = self._start(cell.drafted, slots)
        if self._streams and not isinstance(running, Streaming):
            self._streams = False
            if slots != cell.concurrency:
                running.stop()
                return self._running(cell)
        self._up[cell.drafted, slots] = running
        warm = Load(slots, slots)
        tokens = min(WARM_TOKENS, self.plan.output_tokens)
        sampling = replace(self.plan.sampling, max_tokens=tokens)
        self.generator.run(running, self.plan.prompts, warm, sampling)
        return running

    def _start(self, drafted: int, slots: int) -> Running:
        settings = replace(self.settings, draft_tokens=drafted, slots=slots)
        # What an engine converts it keeps in its directory, and one at a time may share it.
        folder = self.work / f"draft-{drafted}" if self.plan.together else self.work
        folder.mkdir(parents=True, exist_ok=True)
        draft = self.draft if drafted else None
        running = self.engine.start(self.target, draft, settings, folder)
        self._stack.enter_context(running)
        return running

    def _stop(self) -> None:
        self._stack.close()
        self._stack = ExitStack()
        self._up.clear()


def _said(drafted: int) -> str:
    return f"{drafted} draft tokens" if drafted else "the target alone"


def _check(found: Sample, length: int) -> None:
    """Refuse a run that is not what was asked for: its figure would be of something else."""
    if found.tokens != found.requests * length:
        raise EngineFailed(
            f"{found.requests} answers of {length} tokens were asked for, and {found.tokens} tokens"
            " came",
            "does the engine honour ignore_eos, and do prompt and answer fit its context?",
        )
    if found.drafted and not found.rounds:
        raise EngineFailed(
            f"a draft of {found.drafted} tokens was asked for, and the engine counts no round that "
            "drafted",
            "did it load the draft? its log says; then: eagle3 diagnose",
        )
