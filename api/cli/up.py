"""`updraft up`: the service on this machine, in the foreground."""

from __future__ import annotations

import importlib.metadata
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from api.cli.console import Exit, Fail, JsonFlag, err, print_json_line, say
from api.embedded import AlreadyRunning, Service
from api.programs import Program, local_url, programs
from jobs.db import migrate
from jobs.settings import Settings

MLFLOW_PATIENCE_S = 180.0
"""MLflow creates its tables on the first start: 17-34 s were measured on two idle cores."""


def up(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this program (repeatable): api, worker, relay or mlflow."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start API, worker, relay and (embedded) MLflow; Ctrl-C stops them all."""
    settings = Settings()
    chosen = _chosen(programs(settings), set(only or []), settings.mode)
    try:
        with running(settings, chosen) as service:
            report_ready(service, quiet=as_json)
            if as_json:
                children = {c.program.name: c.pid for c in service.children}
                print_json_line({"url": local_url(settings), "children": children})
            else:
                say("Ctrl-C stops everything; a job in progress goes on at the next start")
            while True:
                time.sleep(1)
                service.supervise()
    except AlreadyRunning as error:
        raise Fail(str(error), "use it as it is, or stop it there with Ctrl-C") from None
    except KeyboardInterrupt:
        say("stopped")


@contextmanager
def running(settings: Settings, chosen: list[Program]) -> Iterator[Service]:
    """The service while the block runs. INT and TERM leave the block as KeyboardInterrupt."""
    settings.home.mkdir(parents=True, exist_ok=True)
    service = Service(settings, chosen, say)
    # INT too: a shell that starts us in the background has it ignored.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    try:
        service.start(prepare=lambda: migrate(settings))
        yield service
    finally:
        try:
            service.stop()
        except KeyboardInterrupt:
            say("stopping at once")
            service.kill()


def report_ready(service: Service, *, quiet: bool = False) -> None:
    """Wait for each child and say, line by line, where it is."""
    settings = service.settings
    version = importlib.metadata.version("updraft")
    if not quiet:
        err.print(f"[bold]Updraft {version}[/] · {settings.mode} · {settings.home}")
    for child in sorted(service.children, key=lambda c: c.program.name == "mlflow"):
        name = child.program.name
        slow = name == "mlflow"
        note = " (the first start takes half a minute)" if slow else ""
        with err.status(f"waiting for {name}{note}"):
            began = time.monotonic()
            service.wait_ready([name], MLFLOW_PATIENCE_S if slow else 60.0)
            took = time.monotonic() - began
        if not quiet:
            where = {"api": local_url(settings), "mlflow": settings.mlflow_tracking_uri}
            late = f" [dim]({took:.0f} s)[/]" if took >= 2 else ""
            err.print(f"  [green]✔[/] {name:<8}{where.get(name, f'process {child.pid}')}{late}")


def _chosen(known: list[Program], only: set[str], mode: str) -> list[Program]:
    if unknown := only - {p.name for p in known}:
        raise Fail(
            f"no program {', '.join(sorted(unknown))} in {mode} mode",
            f"expected {', '.join(p.name for p in known)}",
            Exit.BAD_INPUT,
        )
    return [p for p in known if not only or p.name in only]


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
