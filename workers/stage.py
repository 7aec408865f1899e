"""Runs the stages a worker leases, and turns every way one can end into what its row says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import (
    DataError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session

from jobs import endings, leases, tracing
from jobs.endings import Failure
from jobs.errors import (
    FailureReason,
    Invalid,
    LeaseLost,
    NotFound,
    StoreRefused,
    Unavailable,
    UpdraftError,
)
from jobs.files import disk_is_full
from jobs.leases import Lease
from jobs.models import Stage
from jobs.outputs import Found
from jobs.states import StageStatus
from workers.attach import end_probe
from workers.execute import StageFailed, StageRestarts, StageStopped, execute
from workers.inputs import needs_resolve, prepare_run
from workers.keeper import Keeper
from workers.register import register
from workers.runtime import Runtime
from workers.uploads import reuse_outputs, upload_logs, upload_outputs

log = logging.getLogger(__name__)

Write = Callable[[Session], object]

AWAY = (OperationalError, InterfaceError)
"""What a database raises that is stopped, starting, or cut off."""

NEVER = (DataError, ProgrammingError)
"""What the database says to a write that no later try can bring about."""

MEASURED = ("probe", "parity", "benchmark", "prove")
"""Stages that say something of the machine they run on: never taken from another job."""

SAME_TARGET = ("weights_sha256", "tokenizer_sha256", "template_sha256")


def drain(rt: Runtime) -> int:
    """Claim and run stages until none is eligible or the worker is to stop. Returns how many."""
    count = 0
    while not rt.stop.is_set():
        with rt.db.write() as session:
            lease = leases.claim(
                session, rt.owner, settings=rt.settings, now=rt.clock(), has=rt.has
            )
        if lease is None:
            break
        run_lease(rt, lease)
        count += 1
    return count


def run_lease(rt: Runtime, lease: Lease) -> None:
    """Run a leased stage to whatever end it comes to, and write that down."""
    with Keeper(rt, lease) as keeper, _span(rt, lease):
        log.info("started", extra={**keeper.context(), **tracing.here()})
        try:
            write = _outcome(rt, lease, keeper)
            _settle(rt, keeper, write)
        except LeaseLost:
            log.warning("lease lost; this worker's work is dropped", extra=keeper.context())
            return
        log.info("ended", extra=keeper.context())


def _span(rt: Runtime, lease: Lease) -> AbstractContextManager[tracing.Note]:
    parent = None
    try:
        with rt.db.read() as session:
            parent = tracing.of_job(session, lease.job_id)
    except SQLAlchemyError as e:
        log.warning("the stage's trace is its own: %s", type(e).__name__)
    name, attempt = f"stage {lease.stage}", lease.attempt
    return tracing.span(name, parent, job_id=lease.job_id, attempt=attempt, worker=lease.owner)


def _outcome(rt: Runtime, lease: Lease, keeper: Keeper) -> Write:
    """Do the stage's work. Returns the one write that says how it ended."""
    try:
        return _work(rt, lease, keeper)
    except StageStopped as e:
        if e.cancelled:
            return lambda s: endings.cancelled(s, lease, now=rt.clock())
        text = f"{lease.stage} was stopped with its work saved"
        return lambda s: endings.release(s, lease, now=rt.clock(), message=text)
    except StageRestarts as e:
        asked = e.failure
        return lambda s: endings.restart(s, lease, asked, settings=rt.settings, now=rt.clock())
    except StageFailed as e:
        failure, result = e.failure, e.result
        return lambda s: endings.fail(
            s, lease, failure, settings=rt.settings, now=rt.clock(), result=result
        )
    except LeaseLost:
        raise
    except (Unavailable, *AWAY) as e:
        wait = rt.settings.retry_base_seconds * 3
        why = e if isinstance(e, Unavailable) else "the database did not answer"
        text = f"{lease.stage} waits {wait:.0f} s: {why}"
        return lambda s: endings.release(s, lease, now=rt.clock(), message=text, wait=wait)
    except StoreRefused as e:  # keys change, so it is tried again, but not without end
        hint = "see that the store is usable (updraft doctor) and submit the job again"
        return _failing(rt, lease, Failure(FailureReason.INTERNAL, str(e), hint))
    except (NotFound, Invalid) as e:
        return _failing(rt, lease, Failure(FailureReason.BAD_INPUT, str(e)))
    except Exception as e:  # a worker outlives any stage; the traceback is in its log
        log.exception("%s failed in the worker", lease.stage, extra=keeper.context())
        return _failing(rt, lease, _unexpected(e))


def _work(rt: Runtime, lease: Lease, keeper: Keeper) -> Write:
    earlier = _earlier(rt, lease)
    run = prepare_run(rt, lease, earlier, lambda: _check(rt, keeper))
    keeper.check()
    if lease.stage == "register":
        return register(rt, lease, keeper, run, earlier)
    try:
        if needs_resolve(run, lease.stage):
            moved = execute(rt, lease, keeper, run, "resolve")
            _same_target(moved.get("summary", {}), earlier)
        result, reused = _execute(rt, lease, keeper, run)
    finally:
        _keep_logs(rt, keeper, run)
    if not result:
        text = f"{lease.stage} ended well without a result line"
        raise StageFailed(Failure(FailureReason.INTERNAL, text, "see the stage's log"))
    uri = upload_outputs(rt, lease, run, result["digest"], lambda: _wanted(keeper))
    if lease.stage == "probe":
        return lambda s: end_probe(rt, s, lease, result, uri)
    return lambda s: endings.finish(
        s,
        lease,
        now=rt.clock(),
        summary=result["summary"],
        digest=result["digest"],
        uri=uri,
        seconds=result["seconds"],
        reused=reused,
    )


def _execute(
    rt: Runtime, lease: Lease, keeper: Keeper, run: Path
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Run the stage. Returns its result and, where its outputs were there, whence they came."""
    found: list[Found] = []

    def find(digest: str) -> None:
        if lease.stage in MEASURED:
            return
        if other := reuse_outputs(rt, lease, run, digest, lambda: _check(rt, keeper)):
            found.append(other)

    result = execute(rt, lease, keeper, run, lease.stage, find)
    if not result.get("cached"):
        return result, None
    return result, {"job_id": found[0].job_id if found else None}


def _wanted(keeper: Keeper) -> None:
    """Raise when the job is cancelled. A worker that stops, or a pause, waits for an upload: what
    it stores is all the stage's work."""
    keeper.check()
    if keeper.cancel.is_set():
        raise StageStopped(cancelled=True)


def _check(rt: Runtime, keeper: Keeper) -> None:
    """Raise when what is being prepared is not wanted any more."""
    keeper.check()
    if keeper.cancel.is_set() or keeper.pause.is_set() or rt.stop.is_set():
        raise StageStopped(cancelled=keeper.cancel.is_set())


def _settle(rt: Runtime, keeper: Keeper, write: Write) -> None:
    """Write the end down; while the database is away, try again for as long as the lease holds."""
    while True:
        try:
            with rt.db.write() as session:
                write(session)
            return
        except NEVER as e:
            log.exception("the end cannot be stored", extra=keeper.context())
            text = f"how it ended cannot be stored ({type(e).__name__})"
            write = _failing(
                rt, keeper.lease, Failure(FailureReason.INTERNAL, text, "see the worker's log")
            )
        except SQLAlchemyError as e:
            log.warning("end not written yet: %s", type(e).__name__, extra=keeper.context())
        keeper.lost.wait(1.0)
        keeper.check()


def _earlier(rt: Runtime, lease: Lease) -> list[Stage]:
    """The stages of the job that are done, in order."""
    query = (
        select(Stage)
        .where(Stage.job_id == lease.job_id, Stage.status == StageStatus.SUCCEEDED)
        .order_by(Stage.position)
    )
    with rt.db.read() as session:
        return list(session.scalars(query))


def _same_target(found: dict[str, object], earlier: list[Stage]) -> None:
    """Refuse to go on when the reference points to another model than it did at the start."""
    first = next((s.summary or {} for s in earlier if s.name == "resolve"), {})
    for name in SAME_TARGET:
        if first.get(name) != found.get(name):
            text = f"the target changed while the job ran: {name} is another than at the start"
            hint = "submit the job again, with a fixed revision"
            raise StageFailed(Failure(FailureReason.BAD_INPUT, text, hint))


def _keep_logs(rt: Runtime, keeper: Keeper, run: Path) -> None:
    """Store what the stage printed, unless it is another's: their key has no token in it."""
    keeper.beat()  # who was frozen has not noticed yet
    if keeper.lost.is_set():
        return
    try:
        upload_logs(rt.store, run, keeper.lease.job_id, keeper.lease.stage)
    except (UpdraftError, OSError) as e:  # how the stage ended counts
        log.warning("logs not stored: %s", e, extra=keeper.context())


def _failing(rt: Runtime, lease: Lease, failure: Failure) -> Write:
    return lambda s: endings.fail(s, lease, failure, settings=rt.settings, now=rt.clock())


def _unexpected(error: Exception) -> Failure:
    if disk_is_full(error):
        text = "the disk is full"
        return Failure(FailureReason.DISK_FULL, text, "free space and submit the job again")
    text = f"{type(error).__name__}: {error}"
    return Failure(FailureReason.INTERNAL, text, "see the worker's log")
