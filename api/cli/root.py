"""The root command: global options, the list of commands, and how errors become exit codes."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from api.cli import attach, demo, doctor, drafts, evaluate, gc, jobs, keys, serve, up, validate
from api.cli.console import Connection, Exit, Fail, err
from api.client import ApiError, ClientError, ServiceUnreachable
from api.programs import StartError, local_url
from eagle3.config import explain
from jobs.errors import UpdraftError
from jobs.settings import Settings


class Commands(TyperGroup):
    """Turns what a command raises into one clear message and a documented exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            err.print("interrupted", style="yellow")
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Fail as error:
            _report(str(error), error.hint)
            raise typer.Exit(error.code) from None
        except ServiceUnreachable as error:
            _report(str(error), "start the service with: updraft up (or set UPDRAFT_URL)")
            raise typer.Exit(Exit.UNREACHABLE) from None
        except ApiError as error:
            _report(str(error), _api_hint(error))
            code = Exit.UNREACHABLE if error.status == 503 else Exit.UNEXPECTED
            raise typer.Exit(Exit.BAD_INPUT if 400 <= error.status < 500 else code) from None
        except UpdraftError as error:
            _report(str(error), "")
            raise typer.Exit(Exit.BAD_INPUT if error.status < 500 else Exit.UNEXPECTED) from None
        except (ClientError, StartError) as error:
            _report(str(error), "")
            raise typer.Exit(Exit.UNEXPECTED) from None
        except OSError as error:
            if error.filename is None:  # not a file's: a pipe that closed, which typer handles
                raise
            _report(f"{error.filename}: {error.strerror}", "")
            raise typer.Exit(Exit.BAD_INPUT) from None
        except ValidationError as error:
            _report(explain(error), "correct the setting (docs/settings.md lists them all)")
            raise typer.Exit(Exit.BAD_INPUT) from None


app = typer.Typer(
    name="updraft",
    cls=Commands,
    help="Train a proven EAGLE-3 draft for a target model, and have it registered for serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"updraft {importlib.metadata.version('updraft')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    url: Annotated[
        str, typer.Option(envvar="UPDRAFT_URL", help="The service. Default: this machine's.")
    ] = "",
    api_key: Annotated[
        str | None, typer.Option(envvar="UPDRAFT_API_KEY", help="Needed by a full-mode service.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    if ctx.obj is None:
        ctx.obj = Connection(url or local_url(Settings()), api_key)


SERVICE, JOBS, DRAFTS = "Service", "Jobs", "Drafts"

app.command(rich_help_panel=SERVICE)(up.up)
app.command(rich_help_panel=SERVICE)(demo.demo)
app.command(rich_help_panel=SERVICE)(doctor.doctor)
app.command(rich_help_panel=SERVICE)(gc.gc)
app.add_typer(keys.app, name="keys", rich_help_panel=SERVICE)
app.command(rich_help_panel=JOBS)(jobs.init)
app.command(rich_help_panel=JOBS)(validate.validate)
app.command(rich_help_panel=JOBS)(jobs.submit)
app.command("jobs", rich_help_panel=JOBS)(jobs.list_jobs)
app.command(rich_help_panel=JOBS)(jobs.show)
app.command(rich_help_panel=JOBS)(jobs.logs)
app.command(rich_help_panel=JOBS)(jobs.cancel)
app.command(rich_help_panel=JOBS)(jobs.retry)
app.command(rich_help_panel=JOBS)(jobs.pause)
app.command(rich_help_panel=JOBS)(jobs.resume)
app.command(rich_help_panel=DRAFTS)(attach.attach)
app.command(rich_help_panel=DRAFTS)(evaluate.evaluate)
app.command("drafts", rich_help_panel=DRAFTS)(drafts.list_drafts)
app.command(rich_help_panel=DRAFTS)(drafts.pull)
app.command(rich_help_panel=DRAFTS)(serve.serve)
app.command(rich_help_panel=DRAFTS)(drafts.promote)
app.command(rich_help_panel=DRAFTS)(drafts.rollback)


def main() -> None:
    """The console script."""
    app()


def _report(message: str, hint: str) -> None:
    err.print("error: ", style="bold red", end="")
    err.print(message, markup=False, soft_wrap=True)
    if hint:
        err.print("  → ", style="cyan", end="")
        err.print(hint, markup=False, soft_wrap=True)


def _api_hint(error: ApiError) -> str:
    if error.status == 401:
        return "set UPDRAFT_API_KEY; a key is made with: updraft keys create"
    return f"request {error.problem.request_id}" if error.status >= 500 else ""
