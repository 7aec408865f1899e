"""A study from its engine to its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from eagle3.compare.compare import commit
from eagle3.engines.engine import Engine, Settings
from eagle3.errors import BadInput, Stopped
from eagle3.process import stop_on_signals
from eagle3.provenance import hardware, versions
from eagle3.throughput.lab import Lab, Plan
from eagle3.throughput.load import Generator, Own
from eagle3.throughput.result import (
    Setup,
    Throughput,
    cells,
    choices,
    model,
    stops_paying,
)
from eagle3.throughput.samples import Sample
from eagle3.throughput.study import Grid, Study, study
from eagle3.throughput.tools import Driven, SglangBench, Tool, VllmBench


def run(
    engine: Engine,
    target: Path,
    draft: Path,
    settings: Settings,
    plan: Plan,
    grid: Grid,
    out: Path,
    *,
    whole: bool,
    source: str,
    tokenizer: PreTrainedTokenizerBase,
    own: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Throughput:
    """Measure, choose and confirm.

    Args:
        out: every run is written there as soon as it ended (`samples.jsonl`), and what engine and
            generator work with (`work/`).
        whole: measure the whole grid, and judge the choices by it.
        own: never use the engine's own generator.
        tell: what is being done, for people.

    Raises:
        BadInput: an engine that is not there, or a load that it cannot be given.
        EngineFailed: it died, hung or refused.
        Stopped: TERM or INT came.
    """
    if (hint := engine.missing()) is not None:
        raise BadInput(f"{engine.name} is not installed here", hint)
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    journal = out / "samples.jsonl"
    journal.write_text("")

    def keep(sample: Sample) -> None:
        with journal.open("a") as file:
            file.write(sample.model_dump_json() + "\n")

    with (
        stop_on_signals() as stop,
        _generator(engine, own, target, tokenizer, work) as generator,
    ):

        def check_stop() -> None:
            if stop.is_set():
                raise Stopped("throughput was stopped", f"what was measured is in {journal}")

        with Lab(
            engine, target, draft, settings, plan, generator, work, tell, check_stop, keep
        ) as lab:
            found = study(lab, grid, whole)
    return _result(lab, found, grid, source, generator.name)


@contextmanager
def _generator(
    engine: Engine, own: bool, target: Path, tokenizer: PreTrainedTokenizerBase, work: Path
) -> Iterator[Generator]:
    """The engine's own generator where its environment has one."""
    tools: Mapping[str, Tool] = {
        "vllm": VllmBench(),
        "sglang": SglangBench(str(tokenizer.bos_token or "")),
    }
    tool = tools.get(engine.name)
    environment = getattr(engine, "environment", None)
    if own or tool is None or environment is None:
        yield Own()
        return
    with Driven(
        tool, [str(environment.python)], target, tokenizer.decode, work / "generator"
    ) as driven:
        yield driven


def _result(lab: Lab, found: Study, grid: Grid, source: str, generator: str) -> Throughput:
    plan, settings = lab.plan, lab.settings
    measured = cells(lab, found)
    return Throughput(
        setup=Setup(
            target=str(lab.target),
            draft=str(lab.draft),
            engine=lab.engine.name,
            engine_version=lab.engine.version(),
            generator=generator,
            dtype=settings.dtype,
            threads=settings.threads,
            context=settings.context,
            slots=settings.slots,
            extra=settings.extra,
            prompts=len(plan.prompts),
            prompt_tokens=sum(map(len, plan.prompts)) / len(plan.prompts),
            source=source,
            output_tokens=plan.output_tokens,
            rounds=plan.rounds,
            together=plan.together,
        ),
        cells=measured,
        acceptance={n: list(a.at) for n, a in found.model.acceptance.items()},
        model=model(found, measured, grid.few),
        choices=choices(found),
        ranges=found.ranges,
        switch_off=found.switch_off,
        break_even=stops_paying(measured, grid),
        samples=lab.samples.all,
        hardware=hardware(),
        versions=versions(),
        commit=commit(),
    )
