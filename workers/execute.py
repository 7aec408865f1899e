"""One stage's child process with everything around it, and what its end means."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from jobs.endings import Failure
from jobs.errors import FailureReason, LeaseLost
from jobs.leases import Event, Lease, report
from workers.environment import child_environment
from workers.keeper import Keeper
from workers.progress import Reporter
from workers.runtime import Runtime
from workers.supervisor import Cause, ChildEnd, Limits, run_child
from workers.uploads import CheckpointUploader

EXIT_STOPPED = 75
EXIT_REASONS = {
    2: FailureReason.BAD_INPUT,
    3: FailureReason.TARGET_UNAVAILABLE,
    4: FailureReason.DISK_FULL,
}


class StageFailed(Exception):
    """A stage that ended badly, with what its row and its job will say."""

    def __init__(self, failure: Failure, result: dict[str, Any] | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.result = result


class StageRestarts(StageFailed):
    """A stage that stopped by itself, to be started again; a failure where it got no further."""


class StageStopped(Exception):
    """A stage that ended on request. `cancelled`: by its job; otherwise it goes on later."""

    def __init__(self, *, cancelled: bool) -> None:
        super().__init__("cancelled" if cancelled else "stopped")
        self.cancelled = cancelled


def execute(rt: Runtime, lease: Lease, keeper: Keeper, run: Path, stage: str) -> dict[str, Any]:
    """Run `<stage_command> <stage> RUN`. Returns its `result` line (empty when it wrote none).

    Raises:
        StageFailed: it ended badly.
        StageRestarts: it asked to be started again.
        StageStopped: it was stopped, by its job's cancellation or because the worker goes.
        LeaseLost: the stage is another worker's; the child was killed.
    """
    settings = rt.settings
    reporter = Reporter(rt, lease, keeper)
    uploader = _uploader(rt, lease, reporter, run) if settings.upload_checkpoints else None

    def on_line(line: dict[str, Any]) -> None:
        if line["kind"] != "checkpoint":
            reporter.line(line)
        elif uploader is not None:
            uploader.announce(line)
        else:
            reporter.checkpoints.put({"step": line["step"], "path": line["path"]})

    try:
        end = run_child(
            [*settings.stage_command, stage, str(run)],
            cwd=run,
            env=child_environment(settings, stage),
            stderr=run / "logs" / f"{stage}.stderr.log",
            limits=Limits(
                no_progress=settings.no_progress_seconds,
                runtime=settings.max_runtime_seconds,
                grace=settings.stop_grace_seconds,
            ),
            keeper=keeper,
            stop=rt.stop,
            on_line=on_line,
            on_tick=reporter.tick,
        )
    finally:
        if uploader is not None:
            uploader.close()
        reporter.flush()
    keeper.check()
    return judge(end, stage, settings.no_progress_seconds, settings.max_runtime_seconds)


def judge(end: ChildEnd, stage: str, no_progress: float, runtime: float) -> dict[str, Any]:
    """What a child's end means: its result, or one of `execute`'s exceptions."""
    if end.code == 0:
        return end.result or {}
    match end.cause:
        case Cause.LOST:
            raise LeaseLost(f"{stage} is another worker's")
        case Cause.CANCEL:
            raise StageStopped(cancelled=True)
        case Cause.STOP:
            raise StageStopped(cancelled=False)
        case Cause.NO_PROGRESS:
            text = f"{stage} printed nothing for {no_progress:g} s and was stopped"
            raise StageFailed(Failure(FailureReason.TIMEOUT, text, "see the stage's log"))
        case Cause.RUNTIME:
            text = f"{stage} ran longer than {runtime:g} s and was stopped"
            hint = "raise UPDRAFT_MAX_RUNTIME_SECONDS or make the job smaller"
            raise StageFailed(Failure(FailureReason.TIMEOUT, text, hint, retryable=False))
    if end.code == EXIT_STOPPED:
        text = f"{stage} stopped to be started again, and this worker had not told it to"
        hint = "look for what else sends TERM to the stages of this machine"
        raise StageRestarts(Failure(FailureReason.WORKER_LOST, text, hint))
    raise StageFailed(_killed(end, stage) if end.code < 0 else _said(end, stage))


def _said(end: ChildEnd, stage: str) -> Failure:
    """A failure the child itself reported."""
    error = end.error or {}
    reason = EXIT_REASONS.get(end.code, FailureReason.INTERNAL)
    if error.get("reason") == "out_of_memory":
        reason = FailureReason.OUT_OF_MEMORY
    message = str(error.get("message") or f"{stage} ended with exit code {end.code}")
    return Failure(reason, message, str(error.get("hint") or "see the stage's log"))


def _killed(end: ChildEnd, stage: str) -> Failure:
    """A child that a signal ended, and not one of ours."""
    name = signal.Signals(-end.code).name
    if end.code == -signal.SIGKILL and end.memory_killed:
        hint = "use a machine with more memory, or smaller batches"
        return Failure(FailureReason.OUT_OF_MEMORY, f"{stage} was killed: out of memory", hint)
    if end.code in (-signal.SIGKILL, -signal.SIGTERM):
        return Failure(FailureReason.WORKER_LOST, f"{stage} was killed by {name}")
    return Failure(FailureReason.INTERNAL, f"{stage} crashed with {name}", "see the stage's log")


def _uploader(rt: Runtime, lease: Lease, reporter: Reporter, run: Path) -> CheckpointUploader:
    def failed(message: str) -> None:
        reporter.line({"kind": "log", "level": "warning", "message": message})

    uploader = CheckpointUploader(rt.store, run, lease, reporter.checkpoints.put, failed)
    reporter.recorded = uploader.recorded
    return uploader


def say(rt: Runtime, lease: Lease, message: str, level: str = "info") -> None:
    """Add a log event of the worker's own to the job."""
    with rt.db.write() as session:
        report(session, lease, now=rt.clock(), events=[Event("log", message, level)])
