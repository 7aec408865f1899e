"""A run directory and the one way a stage runs in it.

    RUN/config.json                          RunConfig
    RUN/stages/<stage>/<digest>/             outputs and manifest.json (written last)
    RUN/stages/<stage>/current               the digest that the present config leads to
    RUN/logs/<stage>.jsonl                   every line the stage printed
    RUN/lock                                 held while a stage runs: one process a run directory

`digest` is the hash of what decides a stage's result: its part of the config and the content of its
inputs. A stage whose digest has a valid manifest is skipped; that is resume, retry and caching.
Progress goes to stdout as JSON lines (`kind`: progress, metric, log, checkpoint, result, error).
With UPDRAFT_ASK set a stage without outputs asks first (`question`, with its digest) and waits for
a line on stdin: whoever started it may have put outputs of that digest there meanwhile.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from eagle3.config import RunConfig, explain
from eagle3.errors import BadInput, Stopped
from eagle3.process import alone, asks, processes, rank, stop_on_signals
from eagle3.progress import Progress, reporter
from eagle3.provenance import hardware, versions

FORMAT = 1
"""Raised when a stage's outputs change meaning, so that old ones are not reused."""

RunStage = Callable[[str, Path, TextIO | io.TextIOBase], int]
"""Runs a stage in a run directory with its lines in a stream; returns the exit code."""


@dataclass
class Context:
    """What a stage function gets: where to read, where to write, how to report."""

    run: Path
    stage: str
    config: RunConfig
    out: Path
    inputs: dict[str, Path]
    """Output folder of each stage this one reads."""
    progress: Progress
    stop: threading.Event
    summary: dict[str, Any] = field(default_factory=dict)
    """Small facts for the report and the registry; stored in the manifest."""

    def check_stop(self, saved: str = "finished work is kept") -> None:
        """Raise `Stopped` when TERM or INT has come; call it where stopping loses nothing."""
        if self.stop.is_set():
            raise Stopped(f"{self.stage} was stopped; {saved}", "run the same command to go on")


@dataclass(frozen=True)
class Stage:
    """A stage: which stages it reads, which part of the config decides it, and its function."""

    name: str
    reads: tuple[str, ...]
    config_key: Callable[[RunConfig], Any]
    function: Callable[[Context], None]
    always: bool = False
    """Run even when an output exists (resolve: a reference may point to something new)."""
    also_reads: Callable[[RunConfig], tuple[str, ...]] = lambda _: ()
    """Stages that it reads under some configs."""
    together: Callable[[], AbstractContextManager[Callable[[], None]]] | None = None
    """Joins the processes that `torchrun` started, and gives what waits for all of them; a stage
    without it runs in one process."""

    def inputs(self, run: Path, config: RunConfig) -> dict[str, Path]:
        """Output folder of each stage that it reads.

        Raises:
            BadInput: one of them has not run.
        """
        return {name: current(run, name) for name in (*self.reads, *self.also_reads(config))}


def sha256_file(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one."""
    _write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def _write_text(path: Path, text: str) -> None:
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_text(text)
    tmp.replace(path)


def read_config(run: Path) -> RunConfig:
    path = run / "config.json"
    if not path.is_file():
        raise BadInput(f"{run} has no config.json", "make one with: eagle3 init RUN --target …")
    try:
        return RunConfig.model_validate_json(path.read_text())
    except ValidationError as e:
        raise BadInput(f"{path}: {explain(e)}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not text", "expected JSON in UTF-8") from None


def make_run(run: Path, config: RunConfig, hint: str, replace: bool = False) -> Path:
    """Make a run directory, or find the very run there; returns the path of its config.

    Args:
        hint: what to do where another run is there.
        replace: put this run's config in its place.

    Raises:
        BadInput: a file or another run has this name.
    """
    path, content = run / "config.json", config.model_dump(mode="json")
    try:
        run.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"{run} is a file", "expected a directory or a new name") from None
    there = path.is_file() and not replace
    if there and read_config(run).model_dump(mode="json") != content:
        raise BadInput(f"{path} holds another run", hint)
    write_json(path, content)
    return path


def current(run: Path, stage: str) -> Path:
    """Output folder of a stage that has run, and ended.

    Raises:
        BadInput: it has not.
    """
    pointer = run / "stages" / stage / "current"
    digest = pointer.read_text().strip() if pointer.is_file() else ""
    folder = run / "stages" / stage / digest
    if not digest or not (folder / "manifest.json").is_file():
        raise BadInput(f"{stage} has not run in {run}", f"first run: eagle3 {stage} {run}")
    return folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a stage left in its output folder.

    Raises:
        BadInput: the file is damaged.
    """
    path = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        manifest["outputs_digest"]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path} is damaged", "run its stage again; others stay") from None
    return manifest


def changed_outputs(folder: Path) -> Iterator[str]:
    """Files of a manifest that are gone, or not as the stage left them."""
    for name, entry in read_manifest(folder)["outputs"].items():
        path = folder / name
        there = path.is_file() and path.stat().st_size == entry["bytes"]
        if not there or sha256_file(path) != entry["sha256"]:
            yield name


def verify_manifest(folder: Path) -> bool:
    """True when the manifest is there and every listed file has its recorded size and hash."""
    try:
        return next(changed_outputs(folder), None) is None
    except (FileNotFoundError, BadInput, KeyError, TypeError):
        return False


def run_stage(
    stage: Stage, run: Path, stream: TextIO | io.TextIOBase | None = None
) -> dict[str, Any]:
    """Run one stage, or find that its outputs exist. Returns the manifest.

    Files under `work/` in the output folder are the stage's own (resume state): they are not listed
    in the manifest, and are removed once it is written. Of several processes the first holds the
    run directory and writes all of this.
    """
    config = read_config(run)
    progress = reporter(stage.name, run, stream)
    started = time.monotonic()
    with stop_on_signals() as stop, _with_others(stage, run, progress, stop) as wait:
        inputs = stage.inputs(run, config)
        key = {
            "format": FORMAT,
            "stage": stage.name,
            "config": stage.config_key(config),
            "inputs": {name: read_manifest(p)["outputs_digest"] for name, p in inputs.items()},
        }
        digest = sha256_json(key)[:32]
        out = run / "stages" / stage.name / digest
        if not rank() and asks() and not stage.always and not verify_manifest(out):
            progress.ask(digest=digest)
        wait()
        cached = not stage.always and verify_manifest(out)
        ctx = Context(run, stage.name, config, out, inputs, progress, stop)
        if rank() and not cached:
            stage.function(ctx)
        elif not cached:
            out.mkdir(parents=True, exist_ok=True)
            (out / "manifest.json").unlink(missing_ok=True)
            seconds = _timed(stage, ctx)
            _write_manifest(ctx, key, digest, seconds)
            shutil.rmtree(out / "work", ignore_errors=True)
        if rank() == 0:
            _write_text(run / "stages" / stage.name / "current", digest)
        wait()
        manifest = read_manifest(out)
    progress.emit(
        "result",
        digest=digest,
        dir=str(out.relative_to(run)),
        cached=cached,
        seconds=round(time.monotonic() - started, 3),
        summary=manifest["summary"],
    )
    return manifest


@contextmanager
def _with_others(
    stage: Stage, run: Path, progress: Progress, stop: threading.Event
) -> Iterator[Callable[[], None]]:
    """Hold the run directory, for all processes of the stage; gives what waits for all of them.

    Raises:
        BadInput: there are several, and this stage runs in one.
    """
    if processes() > 1 and stage.together is None:
        raise BadInput(
            f"{stage.name} was started in {processes()} processes and runs in one",
            f"eagle3 {stage.name} {run}; only extract and train go behind torchrun",
        )
    joined = stage.together() if processes() > 1 and stage.together else nullcontext(_no_others)
    held = nullcontext() if rank() else alone(run, stage.name, progress.info, stop)
    with joined as wait, held:
        wait()
        yield wait


def _no_others() -> None:
    """What waits for the others of one process."""


def _timed(stage: Stage, ctx: Context) -> float:
    """Run the stage's function; returns its seconds, those of earlier runs that were stopped too.

    What a killed process had spent is not known and not counted.
    """
    spent = ctx.out / "work" / "seconds.json"
    before = float(json.loads(spent.read_text())) if spent.is_file() else 0.0
    started = time.monotonic()
    try:
        stage.function(ctx)
    except Stopped:
        spent.parent.mkdir(exist_ok=True)
        write_json(spent, before + time.monotonic() - started)
        raise
    return before + time.monotonic() - started


def _write_manifest(ctx: Context, key: dict[str, Any], digest: str, seconds: float) -> None:
    outputs = {}
    for path in sorted(p for p in ctx.out.rglob("*") if p.is_file()):
        name = path.relative_to(ctx.out).as_posix()
        if not name.startswith("work/") and name not in ("manifest.json", "local.json"):
            outputs[name] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
    manifest = {
        "stage": ctx.stage,
        "digest": digest,
        "key": key,
        "outputs": outputs,
        "outputs_digest": sha256_json({name: o["sha256"] for name, o in outputs.items()}),
        "summary": ctx.summary,
        "seconds": round(seconds, 3),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "seed": ctx.config.recipe.seed,
        "versions": versions(),
        "hardware": hardware(),
    }
    write_json(ctx.out / "manifest.json", manifest)
