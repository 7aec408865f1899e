"""The command evaluate: a registered draft is measured, alone or beside another one."""

from __future__ import annotations

from typing import Annotated, Any

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
from api.cli.drafts import DraftName, find_draft
from api.cli.watch import exit_code, wait
from api.client import Client


def evaluate(
    ctx: typer.Context,
    draft: DraftName,
    target: Annotated[
        str | None, typer.Option(help="Another checkpoint; the draft's own target if left out.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Measure this draft beside it; `champion` is its name's.")
    ] = None,
    count: Annotated[int, typer.Option(min=2, max=1000, help="Held-out prompts.")] = 16,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and options answer with the same job.")
    ] = None,
    parity: Annotated[bool, typer.Option("--parity", help="Try it in engines, too.")] = False,
    wait_for_end: WaitFlag = False,
    timeout: Timeout = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a registered draft, and train nothing."""
    if timeout is not None and not wait_for_end:
        raise Fail("--timeout needs the end", "add --wait", Exit.BAD_INPUT)
    with connection(ctx).client() as client:
        job, replayed = client.evaluate(
            _ref(client, draft),
            target=target,
            against=against and _ref(client, against),
            idempotency_key=idempotency_key,
            count=count,
            parity=parity,
        )
        say(f"{job.id} {'is the job with this idempotency key' if replayed else 'submitted'}")
        if wait_for_end:
            job = wait(client, job, timeout_s=timeout)
    if as_json:
        print_json(job)
    elif not wait_for_end:
        out.print(job.id, markup=False)
    elif job.result is not None:
        for line in lines(job.result):
            out.print(line, markup=False)
    if wait_for_end:
        raise typer.Exit(exit_code(job))


def _ref(client: Client, text: str) -> str:
    """A draft as the API names it, which knows none by its target."""
    return find_draft(client, text).id if "/" in text else text


def lines(result: dict[str, Any]) -> list[str]:
    """A result in a few lines."""
    found, other = [_line(result)], result.get("against")
    if other is not None:
        found.append(_line(other))
        text = f"{result['draft_id']} is {other['comparison'].replace('_', ' ')}"
        if other["tau_gain"] is not None:
            low, high = other["tau_gain_ci"]
            text += f": acceptance length {other['tau_gain']:+.2f} ({low:+.2f} to {high:+.2f})"
        found.append(text)
    return found


def _line(one: dict[str, Any]) -> str:
    if not one["fits"]:
        return f"{one['draft_id']} does not fit: {one['why']}"
    (low, high), text = one["tau_ci"], "lossless" if one["lossless"] else "NOT lossless"
    return (
        f"{one['draft_id']}: acceptance length {one['tau']:.2f} ({low:.2f} to {high:.2f}), "
        f"{one['speedup']:.2f}x plain decoding, {text} over {one['compared_tokens']} tokens"
    )
