"""One stage's child process with everything around it, and what its end means."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs import tracing
from jobs.endings import Failure
from jobs.errors import FailureReason, LeaseLost
from jobs.files import folder_bytes
from jobs.hub_tokens import hub_token_of
from jobs.leases import Lease
from jobs.needs import ANY, parse_gpus
from jobs.settings import Settings
from workers.environment import FETCHING, OwnHub, child_environment
from workers.keeper import Keeper
from workers.machine import VISIBLE, given
from workers.monitor import Monitor
from workers.progress import Reporter
from workers.runtime import Runtime
from workers.supervisor import Cause, ChildEnd, Limits, run_child
from workers.uploads import CheckpointUploader

EXIT_STOPPED = 75
EXIT_REASONS = {
    2: FailureReason.BAD_INPUT,
    3: FailureReason.TARGET_UNAVAILABLE,
    4: FailureReason.DISK_FULL,
    5: FailureReason.ENGINE_FAILED,
}
SAID = ("bad_input", "target_unavailable", "disk_full", "engine_failed", "out_of_memory")
"""Reasons that a stage's error line and a job's failure share."""
SHARED = ("extract", "train")
"""Stages that several processes can do together."""

Find = Callable[[str], None]


def nothing(digest: str) -> None:
    """There are no outputs elsewhere."""


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


def execute(
    rt: Runtime, lease: Lease, keeper: Keeper, run: Path, stage: str, find: Find = nothing
) -> dict[str, Any]:
    """Run `<stage_command> <stage> RUN`. Returns its `result` line (empty when it wrote none).

    Args:
        find: told of the digest of the outputs that the stage is about to make; may bring them.

    Raises:
        StageFailed: it ended badly.
        StageRestarts: it asked to be started again.
        StageStopped: it was stopped, by its job's cancellation or because the worker goes.
        LeaseLost: the stage is another worker's; the child was killed.
    """
    settings, limits = rt.settings, limits_of(rt.settings, lease)
    environment = child_environment(settings, stage, _visible(lease), _own_hub(rt, lease, stage))
    reporter = Reporter(rt, lease, keeper)
    uploader = _uploader(rt, lease, reporter, run) if settings.upload_checkpoints else None

    def on_line(line: dict[str, Any]) -> None:
        if line["kind"] == "question":
            find(str(line["digest"]))
            return
        if line["kind"] != "checkpoint":
            reporter.line(line)
            return
        path = str(line["path"])
        made = {"step": line["step"], "path": path, "bytes": folder_bytes(run / path)}
        uploader.announce(made) if uploader is not None else reporter.checkpoints.put(made)

    try:
        with tracing.span(f"eagle3 {stage}") as note, Monitor(reporter.samples.put):
            traced = {name.upper(): place for name, place in tracing.here().items()}
            end = run_child(
                command_of(settings, lease, stage, run),
                cwd=run,
                env={**environment, **traced},
                stderr=run / "logs" / f"{stage}.stderr.log",
                limits=limits,
                keeper=keeper,
                stop=rt.stop,
                on_line=on_line,
                on_tick=reporter.tick,
            )
            note(exit_code=end.code, cause=end.cause or "")
    finally:
        if uploader is not None:
            uploader.close()
        reporter.flush()
    keeper.check()
    return judge(end, stage, limits, limits.runtime + lease.spent)


def _own_hub(rt: Runtime, lease: Lease, stage: str) -> OwnHub | None:
    """How the job's owner fetches, where the stage does and the owner has a token."""
    pepper, owner = rt.settings.api_key_pepper, lease.account
    if pepper is None or stage not in FETCHING:
        return None
    with rt.db.read() as session:
        token = hub_token_of(session, owner, pepper=pepper, now=rt.clock())
    return None if token is None else OwnHub(token, rt.settings.cache / "owners" / owner)


def limits_of(settings: Settings, lease: Lease) -> Limits:
    """How long a leased stage may take: the least that job and deployment say, less what earlier
    leases of the stage took."""
    asked, name = lease.spec.limits, lease.stage
    runtime = settings.max_runtime_seconds
    for most in (settings.stage_seconds.get(name), asked.seconds.get(name)):
        runtime = min(runtime, most or runtime)
    silent = settings.no_progress_seconds
    return Limits(
        no_progress=min(silent, asked.no_progress_seconds or silent),
        runtime=max(0.0, runtime - lease.spent),
        grace=settings.stop_grace_seconds,
    )


def command_of(settings: Settings, lease: Lease, stage: str, run: Path) -> list[str]:
    """The command line of a stage: one process for each GPU that its job asked for, where the
    stage knows how to share its work."""
    command = [*settings.stage_command, stage, str(run)]
    count = parse_gpus(lease.needs).count
    if count < 2 or stage not in SHARED:
        return command
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    grace = f"--shutdown-timeout={settings.stop_grace_seconds:.0f}"
    return [*torchrun, f"--nproc-per-node={count}", grace, *command]


def judge(end: ChildEnd, stage: str, limits: Limits, runtime: float) -> dict[str, Any]:
    """What a child's end means: its result, or one of `execute`'s exceptions.

    Args:
        runtime: the stage's time limit, all its leases together.
    """
    if end.code == 0:
        return end.result or {}
    match end.cause:
        case Cause.LOST:
            raise LeaseLost(f"{stage} is another worker's")
        case Cause.CANCEL:
            raise StageStopped(cancelled=True)
        case Cause.STOP | Cause.PAUSE:
            raise StageStopped(cancelled=False)
        case Cause.NO_PROGRESS:
            text = f"{stage} printed nothing for {limits.no_progress:g} s and was stopped"
            raise StageFailed(Failure(FailureReason.TIMEOUT, text, "see the stage's log"))
        case Cause.RUNTIME:
            text = f"{stage} ran longer than {runtime:g} s and was stopped"
            hint = "raise the job's limits.seconds or the deployment's, or make the job smaller"
            raise StageFailed(Failure(FailureReason.TIMEOUT, text, hint, retryable=False))
    if end.code == EXIT_STOPPED or (end.error or {}).get("reason") == "stopped":
        text = f"{stage} stopped to be started again, and this worker had not told it to"
        hint = "look for what else sends TERM to the stages of this machine"
        raise StageRestarts(Failure(FailureReason.WORKER_LOST, text, hint))
    raise StageFailed(_killed(end, stage) if end.code < 0 else _said(end, stage))


def _said(end: ChildEnd, stage: str) -> Failure:
    """A failure the child itself reported."""
    error = end.error or {}
    reason = EXIT_REASONS.get(end.code, FailureReason.INTERNAL)
    if error.get("reason") in SAID:  # torchrun's exit code is 1 whatever its processes' is
        reason = FailureReason(error["reason"])
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


def _visible(lease: Lease) -> str | None:
    """The GPUs that a stage may see: as many as it asked for, all of the worker's under `any`."""
    return None if lease.needs == ANY else given(lease.gpus, os.environ.get(VISIBLE))


def _uploader(rt: Runtime, lease: Lease, reporter: Reporter, run: Path) -> CheckpointUploader:
    def failed(message: str) -> None:
        reporter.line({"kind": "log", "level": "warning", "message": message})

    uploader = CheckpointUploader(rt.store, run, lease, reporter.checkpoints.put, failed)
    reporter.recorded = uploader.recorded
    return uploader
