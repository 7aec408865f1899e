"""The command attach: a new checkpoint gets its draft; made for pipelines."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.console import (
    Exit,
    Fail,
    JsonFlag,
    Timeout,
    WaitFlag,
    connection,
    out,
    print_json,
    say,
)
from api.cli.jobs import job_file
from api.cli.junit import write_junit
from api.cli.watch import wait
from api.client import ApiError, Client, ServiceUnreachable
from api.schemas import AttachmentView


class AttachExit(IntEnum):
    """Exit codes of `updraft attach`; docs/attach.md explains them."""

    ATTACHED = 0
    REUSED = 10
    GATES_FAILED = 20
    INCOMPATIBLE = 30
    UNREACHABLE = 40
    FAILED = 50
    CANCELLED = 51
    TIMEOUT = 52


CODES = {
    "attached": AttachExit.ATTACHED,
    "attached_by_reuse": AttachExit.REUSED,
    "gates_failed": AttachExit.GATES_FAILED,
    "incompatible": AttachExit.INCOMPATIBLE,
    "failed": AttachExit.FAILED,
    "cancelled": AttachExit.CANCELLED,
}


def attach(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new checkpoint.")],
    policy: Annotated[
        Path | None, typer.Option(help="Policy file: a job file without target, with attach.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and policy give the same attachment again.")
    ] = None,
    wait_for_end: WaitFlag = False,
    timeout: Timeout = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML there.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write a Markdown page there.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Have a checkpoint get its draft: reuse one, train one on, or train one."""
    if not wait_for_end and (timeout is not None or junit is not None or summary is not None):
        raise Fail("--timeout, --junit and --summary need the end", "add --wait", Exit.BAD_INPUT)
    asked = job_file(policy, expected="the keys of a job but target") if policy else {}
    try:
        with connection(ctx).client() as client:
            made, replayed = client.attach(target, asked, idempotency_key=idempotency_key)
            say(f"{made.id} ({made.job_id}) {'is there already' if replayed else 'submitted'}")
            found = _ended(client, made, timeout) if wait_for_end else made
    except ServiceUnreachable as error:
        hint = "start the service with: updraft up (or set UPDRAFT_URL)"
        raise Fail(str(error), hint, AttachExit.UNREACHABLE) from None
    except ApiError as error:
        if error.status != 503:
            raise
        raise Fail(str(error), "try again later", AttachExit.UNREACHABLE) from None
    if summary is not None:
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(found.summary)
    if junit is not None:
        write_junit(junit, found)
    if as_json:
        print_json(found)
    else:
        out.print(found.summary if wait_for_end else found.id, markup=False)
    if wait_for_end:
        raise typer.Exit(CODES.get(found.status, AttachExit.FAILED))


def _ended(client: Client, made: AttachmentView, timeout: float | None) -> AttachmentView:
    """Wait for the job, and read how the attachment ended."""
    job = client.job(made.job_id)
    try:
        wait(client, job, timeout_s=timeout)
    except Fail as error:
        if error.code != Exit.TIMEOUT:
            raise
        raise Fail(str(error), error.hint, AttachExit.TIMEOUT) from None
    return client.attachment(made.id)
