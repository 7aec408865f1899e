"""`eagle3`: make a run directory, run its stages, report on it. Needs no service.

    eagle3 init RUN --target demo --recipe quick
    eagle3 run RUN                (or one stage: eagle3 train RUN)
    eagle3 prove RUN --again      (prove once more; which fields of the certificate differ?)
    eagle3 report RUN
    eagle3 preview RUN            (what it trains on: masks, truncation, draft vocabulary)
    eagle3 plan TARGET            (what it would take, before anything is fetched)
    eagle3 scaling RUN            (what twice the data would give)
    eagle3 compare RUN            (drafting methods on the same questions)
    eagle3 parity RUN             (do engines do with the draft what training says?)
    eagle3 diagnose TARGET DRAFT  (why does it accept too little?)
    eagle3 fingerprint TARGET     (what a checkpoint is, and how far it is from another)
    eagle3 probe TARGET DRAFT     (what a draft is worth on another checkpoint)
    eagle3 export RUN --format gguf --out DIR  (the draft as another engine loads it)
    eagle3 import DRAFT --target TARGET --out DIR  (a draft that another tool trained)
    eagle3 engines                (which serving engines are here; eagle3 engines install NAME)
    eagle3 serve TARGET DRAFT --engine llamacpp  (both, on this machine, until Ctrl-C)
    eagle3 throughput RUN         (a served draft under load, and settings for each load)

A stage prints JSON lines; a person at a terminal gets `eagle3 run` with readable lines. Exit codes:
0 done, 1 internal error, 2 bad input, 3 target unavailable, 4 disk full, 5 a serving engine failed,
75 stopped and resumable.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO

# Spinning OpenMP threads make a shared core many times slower; read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from pydantic import ValidationError

from eagle3 import clean_cli, plan_cli, preview_cli
from eagle3.attach import cli as attach_cli
from eagle3.compare import cli as compare_cli
from eagle3.config import STAGES, RunConfig, explain, load_recipe
from eagle3.diagnose import cli as diagnose_cli
from eagle3.engines import cli as engines_cli
from eagle3.engines import serve_cli
from eagle3.errors import BadInput, DiskFull, StageError, disk_is_full, memory_is_full
from eagle3.export import cli as export_cli
from eagle3.parity import cli as parity_cli
from eagle3.process import leave, processes
from eagle3.progress import reporter
from eagle3.run import make_run, read_config, run_stage
from eagle3.scaling import cli as scaling_cli
from eagle3.throughput import cli as throughput_cli


def main(argv: list[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    try:
        code = args.run_command(args)
    except StageError as e:
        sys.stderr.write(f"eagle3 {args.command}: {e}\n{e.hint}".rstrip() + "\n")
        code = e.exit_code
    leave(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eagle3", description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def add(name: str, help_text: str, function: object) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_text)
        command.add_argument("run", type=Path, metavar="RUN", help="the run directory")
        command.set_defaults(run_command=function, stage=name)
        return command

    init = add("init", "write RUN/config.json", _init)
    init.add_argument("--target", required=True, help="demo, org/name[@rev], file:///…, gguf:/…")
    init.add_argument("--recipe", default="quick", help="a shipped recipe or a YAML file")
    init.add_argument("--prompts", help="a file, a directory, a hub dataset, or demo")
    init.add_argument("--heldout", type=int, help="prompts that no stage trains on")
    init.add_argument("--force", action="store_true", help="replace another run's config.json")
    init.add_argument("--limit", type=int, help="use at most this many prompts")
    add("run", "run every stage that has not run, then report", _run_all)
    for stage in STAGES:
        command = add(stage, f"run the stage {stage}", _run_one)
        if stage == "prove":
            command.add_argument(
                "--again", action="store_true", help="prove once more and compare; 1: not the same"
            )
        if stage == "export":
            export_cli.add_export(command, _run_one)
        if stage == "parity":
            parity_cli.add_parity(command, _run_one, _Readable)
    add("report", "write RUN/report/", _report)
    export_cli.register(commands)
    plan_cli.register(commands)
    engines_cli.register(commands)
    serve_cli.register(commands)
    scaling_cli.register(commands, _guarded, _Readable)
    compare_cli.register(commands, _guarded, _Readable)
    throughput_cli.register(commands)
    diagnose_cli.register(commands)
    attach_cli.register(commands, _guarded)
    clean_cli.register(commands)
    preview_cli.register(commands)
    return parser


def _init(args: argparse.Namespace) -> int:
    try:
        said = {"source": args.prompts, "heldout": args.heldout, "limit": args.limit}
        recipe = load_recipe(args.recipe)
        recipe = recipe.with_prompts({k: v for k, v in said.items() if v is not None})
        config = RunConfig(target=args.target, prompts=recipe.prompts, recipe=recipe)
    except (ValidationError, ValueError) as e:
        text = explain(e) if isinstance(e, ValidationError) else str(e)
        sys.stderr.write(f"eagle3 init: {text}\n")
        return 2
    path = make_run(args.run, config, "use --force to replace it", args.force)
    sys.stdout.write(f"{path} written; next: eagle3 run {args.run}\n")
    return 0


def _run_one(args: argparse.Namespace) -> int:
    return _guarded(args.stage, args.run, sys.stdout, getattr(args, "again", False))


def _run_all(args: argparse.Namespace) -> int:
    for stage in STAGES:
        code = _guarded(stage, args.run, _Readable(sys.stdout))
        if code:
            return code
    return _report(args)


def _report(args: argparse.Namespace) -> int:
    from eagle3.report import write_report  # matplotlib loads only here

    folder = write_report(args.run, read_config(args.run))
    sys.stdout.write(f"report: {folder / 'report.html'}\n")
    return 0


def _guarded(stage: str, run: Path, stream: TextIO | io.TextIOBase, again: bool = False) -> int:
    """Run a stage; whatever goes wrong becomes one `error` line and an exit code."""
    _die_with_parent()
    if not run.is_dir():
        sys.stderr.write(f"eagle3 {stage}: {run} is not a directory; make one with: eagle3 init\n")
        return BadInput.exit_code
    progress = reporter(stage, run, stream)
    try:
        _tune_memory()
        from eagle3.attach.stage import PROBE  # torch loads only here
        from eagle3.stages import STAGES as ORDINARY

        function = {**ORDINARY, PROBE.name: PROBE}[stage]
        if again:
            from eagle3.proof.again import prove_again

            return 1 if prove_again(function, run, stream) else 0
        run_stage(function, run, stream)
    except StageError as e:
        progress.emit("error", reason=e.reason, message=str(e), hint=e.hint)
        return e.exit_code
    except Exception as e:
        text = traceback.format_exc()
        sys.stderr.write(text)
        if disk_is_full(e):
            hint = "free some space, then run the same command to go on"
            progress.emit("error", reason=DiskFull.reason, message=str(e), hint=hint)
            return DiskFull.exit_code
        reason = "out_of_memory" if memory_is_full(e) else "internal"
        progress.emit("error", reason=reason, message=f"{type(e).__name__}: {e}", traceback=text)
        return 1
    return 0


class _Readable(io.TextIOBase):
    """A stream that turns a stage's JSON lines into lines for people, at most one a second."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._last = 0.0

    def write(self, line: str) -> int:
        event = json.loads(line)
        text = _readable(event)
        quiet = event["kind"] in ("progress", "metric") and time.monotonic() - self._last < 1.0
        if text and not quiet:
            self._last = time.monotonic()
            self._stream.write(f"{event['stage']:>10}  {text}\n")
        return len(line)

    def flush(self) -> None:
        self._stream.flush()


def _readable(event: dict[str, object]) -> str:
    match event["kind"]:
        case "progress":
            eta = f", {event['eta_s']:.0f} s left" if event.get("eta_s") else ""
            rate = f", {event['rate']:.4g}/s" if event.get("rate") else ""
            note = f"  {event['message']}" if event.get("message") else ""
            return f"{event['done']}/{event['total']} {event['unit']}{rate}{eta}{note}"
        case "metric":
            values = event["metrics"]
            assert isinstance(values, dict)
            return f"step {event['step']}  " + "  ".join(f"{k} {v:.4g}" for k, v in values.items())
        case "result":
            how = "already done" if event["cached"] else f"done in {event['seconds']} s"
            return f"{how}  {json.dumps(event['summary'])}"
        case "error":
            return f"{event['reason']}: {event['message']}\n{'':12}{event.get('hint', '')}".rstrip()
        case "log":
            return str(event["message"])
        case _:
            return ""


def _die_with_parent() -> None:
    """Exit when the worker that started this process is gone: no orphan goes on computing."""
    expected = os.environ.get("UPDRAFT_PARENT_PID")
    if expected is None:
        return

    def watch() -> None:
        while _is_there(int(expected)):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _is_there(pid: int) -> bool:
    """Whether a process that this one descends from lives: its parent, or torchrun's."""
    if processes() == 1:
        return os.getppid() == pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _tune_memory() -> None:
    """Let glibc keep freed memory: large tensors are made and dropped at every step (7-11%)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


if __name__ == "__main__":
    main()
