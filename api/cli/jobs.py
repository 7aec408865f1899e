"""Commands about jobs: init, submit, jobs, show, logs, cancel."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from api.cli.console import (
    Exit,
    Fail,
    JsonFlag,
    Timeout,
    WaitFlag,
    connection,
    out,
    print_json,
    print_json_line,
    say,
)
from api.cli.view import event_text, job_heading, job_panel, jobs_table
from api.cli.watch import exit_code, gates_failed, wait
from api.cli.watch import follow as follow_events
from api.client import Client
from api.schemas import JobView
from jobs.spec import JOB_TEMPLATE, is_local_path, local_path

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, such as job_01kb…")]


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("job.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a commented job file."""
    if path.exists() and not force:
        raise Fail(f"{path} exists", "name another file, or use --force", Exit.BAD_INPUT)
    path.write_text(JOB_TEMPLATE)
    if as_json:
        print_json({"path": str(path)})
    say(f"wrote {path}; edit it, then: updraft submit -f {path} --wait")


def submit(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="Job file; `updraft init` writes one.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target model; overrides the file's.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe; overrides the file's.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Recipe key, such as train.epochs=2.")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="Label, such as team=serving.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and job give the same job again.")
    ] = None,
    wait_for_end: WaitFlag = False,
    timeout: Timeout = None,
    as_json: JsonFlag = False,
) -> None:
    """Submit a job."""
    if timeout is not None and not wait_for_end:
        raise Fail("--timeout is for waiting", "add --wait", Exit.BAD_INPUT)
    spec = job_spec(file, target, recipe, overrides or [], labels or [])
    with connection(ctx).client() as client:
        job, replayed = client.submit(spec, idempotency_key=idempotency_key)
        say(f"{job.id} {'is the job with this idempotency key' if replayed else 'submitted'}")
        if wait_for_end:
            finish(client, wait(client, job, timeout_s=timeout, as_json=as_json), as_json)
        if as_json:
            print_json(job)
        else:
            out.print(job.id)


def finish(client: Client, job: JobView, as_json: bool) -> None:
    """Say how a job ended, and leave with the exit code of that."""
    code = exit_code(job)
    if not as_json:
        if job.error:
            raise Fail(f"{job.id}: {job.error.message}", job.error.hint, code)
        if job.status == "succeeded":
            say(f"{job.id} succeeded; report: updraft show {job.id} --report")
        if failed := gates_failed(job):
            say(f"gates not passed: {', '.join(failed)}; the draft stays a candidate")
    raise typer.Exit(code)


def list_jobs(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="Only jobs with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first."""
    with connection(ctx).client() as client:
        page = client.jobs(status=status, limit=limit)
    if as_json:
        print_json(page)
    elif page.data:
        out.print(jobs_table(page.data, out.width))
    else:
        say("no jobs; submit one with: updraft submit --target demo --recipe quick")


def show(
    ctx: typer.Context,
    job_id: JobId,
    report: Annotated[bool, typer.Option("--report", help="Print its report (Markdown).")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show a job: its stages, what they measured, and what went wrong."""
    with connection(ctx).client() as client:
        if report:
            typer.echo(client.artifact(job_id, "report.md").decode())
            return
        job = client.job(job_id)
    if as_json:
        print_json(job)
        return
    now = datetime.now(UTC)
    out.print(job_heading(job, now))
    out.print(job_panel(job, now, out.width))
    if job.error:
        out.print(f"{job.error.reason}: {job.error.message}", style="red", markup=False)
        if job.error.hint:
            out.print(f"→ {job.error.hint}", markup=False)
    if job.artifacts:
        names = [name for name in job.artifacts if "/" not in name]
        out.print("artifacts: " + ", ".join(names), style="dim", markup=False)


def logs(
    ctx: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Until the job ends.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print a job's events."""
    with connection(ctx).client() as client:
        more = True
        while more:
            page = client.events(job_id, after=after)
            for event in page.data:
                print_json_line(event) if as_json else out.print(event_text(event))
                after = event.seq
            more = page.has_more
        if follow:
            for event in follow_events(client, job_id, after):
                print_json_line(event) if as_json else out.print(event_text(event))


def cancel(ctx: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Ask a job to stop; a stage in progress gets time to end properly."""
    _steer(ctx, Client.cancel, job_id, as_json)


def retry(ctx: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Run a failed or cancelled job again, from its last good stage."""
    _steer(ctx, Client.retry, job_id, as_json)


def pause(ctx: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Keep a job from going on; a stage in progress saves its work first."""
    _steer(ctx, Client.pause, job_id, as_json)


def resume(ctx: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Let a paused job go on from where it was."""
    _steer(ctx, Client.resume, job_id, as_json)


def _steer(
    ctx: typer.Context, action: Callable[[Client, str], JobView], job_id: str, as_json: bool
) -> None:
    with connection(ctx).client() as client:
        job = action(client, job_id)
    print_json(job) if as_json else say(f"{job.id} {job.status}")


def job_spec(
    file: Path | None,
    target: str | None,
    recipe: str | None,
    overrides: list[str],
    labels: list[str],
) -> dict[str, Any]:
    """A job spec as its file and the options that win over it say."""
    if file is None and target is None:
        raise Fail("nothing to submit", "give -f job.yaml or --target MODEL", Exit.BAD_INPUT)
    spec = job_file(file, expected="the key `target`") if file else {}
    if target:
        spec["target"] = target
    if recipe:
        spec["recipe"] = recipe
    for text in overrides:
        path, value = _assignment(text, "--set")
        _put(spec.setdefault("overrides", {}), path.split("."), yaml.safe_load(value))
    for text in labels:
        name, value = _assignment(text, "--label")
        spec.setdefault("labels", {})[name] = value
    return spec


def job_file(path: Path, *, expected: str) -> dict[str, Any]:
    """What a YAML file of a job says, its paths as the worker sees them."""
    try:
        spec = yaml.safe_load(path.read_text())
    except OSError as error:
        raise Fail(f"{path}: {error.strerror}", code=Exit.BAD_INPUT) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Fail(f"{path} is not YAML: {error}", code=Exit.BAD_INPUT) from None
    if not isinstance(spec, dict):
        raise Fail(
            f"{path}: expected a mapping with {expected}",
            "`updraft init` writes an example",
            Exit.BAD_INPUT,
        )
    _absolute(spec.get("prompts"), path.parent)
    return spec


def _absolute(prompts: Any, folder: Path) -> None:
    """Paths of prompt sets as seen from the job file: the worker has another working directory."""
    if isinstance(prompts, list):
        for one in prompts:
            _absolute(one, folder)
    elif isinstance(prompts, dict):
        source = prompts.get("source")
        if isinstance(source, str) and is_local_path(source):
            prompts["source"] = str(folder.joinpath(local_path(source).expanduser()).resolve())
        for sets in ("mix", "exclude"):
            _absolute(prompts.get(sets), folder)


def _assignment(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Fail(f"{option} {text}: expected NAME=VALUE", code=Exit.BAD_INPUT)
    return name, value


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
