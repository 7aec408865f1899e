"""Waiting for a job: a live view in a terminal, plain lines elsewhere, JSON lines on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live

from api.cli.console import Exit, Fail, err, print_json_line, say
from api.cli.view import headline, job_heading, job_panel, stage_line
from api.client import TERMINAL, Client, ServiceUnreachable
from api.schemas import EventView, JobView

POLL_S = 1.0
PLAIN_EVERY_S = 15.0
"""Seconds between progress lines without a terminal."""

PATIENCE_S = 60.0
"""How long the service may be away (restarting, say) before waiting is given up."""


def wait(
    client: Client,
    job: JobView,
    *,
    timeout_s: float | None = None,
    as_json: bool = False,
    tick: Callable[[], None] = lambda: None,
    console: Console = err,
) -> JobView:
    """Until the job has ended, showing it on the way.

    Args:
        tick: called at each poll; whoever runs the service looks after it here.

    Raises:
        Fail: it did not end within `timeout_s`; the job itself goes on.
    """
    states = _poll(client, job, timeout_s, tick)
    if as_json:
        return _show_json(states)
    if console.is_terminal and not console.is_dumb_terminal:
        return _show_live(states, console)
    return _show_plain(states)


def follow(client: Client, job_id: str, after: int = 0) -> Iterator[EventView]:
    """Events as they happen, each once, across restarts of the service.

    Raises:
        ServiceUnreachable: it has been away for `PATIENCE_S`.
    """
    away_since: float | None = None
    while True:
        try:
            done = client.job(job_id).status in TERMINAL
            away_since = None
            for event in client.stream(job_id, after=after):
                yield event
                after = event.seq
            if done:  # the stream of a job that has ended gives all that is left
                return
        except ServiceUnreachable:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > PATIENCE_S:
                raise
            time.sleep(POLL_S)


def exit_code(job: JobView) -> Exit:
    """How a command that waited for this job ends."""
    if job.status == "cancelled":
        return Exit.JOB_CANCELLED
    if job.error and job.error.reason == "quality_gate":
        return Exit.GATE
    if job.status == "failed":
        return Exit.JOB_FAILED
    return Exit.GATE if gates_failed(job) else Exit.OK


def gates_failed(job: JobView) -> list[str]:
    """Names of the gates of the job's spec that its draft did not pass."""
    checks = (job.result or {}).get("gates", {}).get("checks", [])
    return [str(check["name"]) for check in checks if not check["passed"]]


def _poll(
    client: Client, job: JobView, timeout_s: float | None, tick: Callable[[], None]
) -> Iterator[JobView]:
    started = answered = time.monotonic()
    while True:
        yield job
        if job.status in TERMINAL:
            return
        now = time.monotonic()
        if timeout_s is not None and now - started > timeout_s:
            raise Fail(
                f"{job.id} is still {job.status} after {timeout_s:.0f} s",
                f"it goes on; wait again with: updraft logs -f {job.id}",
                Exit.TIMEOUT,
            )
        time.sleep(POLL_S)
        tick()
        try:
            job, answered = client.job(job.id), time.monotonic()
        except ServiceUnreachable:
            if time.monotonic() - answered > PATIENCE_S:
                raise


def _show_live(states: Iterator[JobView], console: Console) -> JobView:
    job: JobView | None = None

    def panel() -> Group:
        assert job is not None  # noqa: S101  set before the display starts
        now = datetime.now(UTC)
        return Group(job_heading(job, now), job_panel(job, now, console.width))

    job = next(states)
    with Live(get_renderable=panel, console=console, refresh_per_second=2) as live:
        for job in states:  # noqa: B007  the panel reads it
            live.refresh()
    return job


def _show_plain(states: Iterator[JobView]) -> JobView:
    told: dict[str, str] = {}
    spoke = 0.0
    job: JobView
    for job in states:
        if told.get("") != job.status:
            told[""] = job.status
            _line(f"{job.id} {job.status}")
        for stage in job.stages:
            if told.get(stage.name, "pending") != stage.status:
                told[stage.name] = stage.status
                if stage.status == "running":
                    spoke = time.monotonic()
                done = stage.status == "succeeded"
                extra = headline(stage) if done else str((stage.error or {}).get("message", ""))
                _line(f"{stage.name}: {stage.status}{f' · {extra}' if extra else ''}")
            elif stage.status == "running" and time.monotonic() - spoke >= PLAIN_EVERY_S:
                spoke = time.monotonic()
                _line(stage_line(stage))
    return job


def _show_json(states: Iterator[JobView]) -> JobView:
    last: JobView | None = None
    for job in states:
        if job != last:
            print_json_line(job)
            last = job
    assert last is not None  # noqa: S101  the first state is always yielded
    return last


def _line(text: str) -> None:
    say(f"{datetime.now().astimezone():%H:%M:%S} {text}")
