"""`updraft demo`: the real job on the demo target, from nothing to a registered draft."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from api.cli.console import Exit, JsonFlag, err, out, print_json, say
from api.cli.up import running
from api.cli.watch import exit_code, gates_failed, wait
from api.client import Client
from api.embedded import Service, running_instance
from api.programs import local_url, programs
from api.schemas import JobView
from eagle3.config import recipe_names
from jobs.settings import Settings
from jobs.spec import parse_spec

MIRROR_PATIENCE_S = 180.0
"""How long the end waits for MLflow to show the draft; it is registered either way."""


def demo(
    profile: Annotated[
        str, typer.Option(help="Recipe: quick (minutes) or standard (an hour or more).")
    ] = "quick",
    as_json: JsonFlag = False,
) -> None:
    """Train, prove, measure and register a draft of the demo target; go on if interrupted."""
    if profile not in recipe_names():
        raise typer.BadParameter(f"expected {' or '.join(recipe_names())}", param_hint="--profile")
    settings = Settings()
    try:
        with _service(settings) as service, Client(local_url(settings)) as client:
            job = _submit(client, profile)
            tick = service.supervise if service else _nothing
            job = wait(client, job, as_json=as_json, tick=tick)
            if job.status == "succeeded":
                _await_mirror(client, job, tick)
            _conclude(client, job, settings.home, as_json)
    except KeyboardInterrupt:
        say(f"interrupted; the job is kept: `updraft demo --profile {profile}` goes on with it")
        raise typer.Exit(Exit.INTERRUPTED) from None
    raise typer.Exit(exit_code(job))


@contextmanager
def _service(settings: Settings) -> Iterator[Service | None]:
    """The service that runs in this home already, or one of our own for the time of the block."""
    if found := running_instance(settings):
        say(f"using the service that runs already: {found[1]}")
        yield None
        return
    with running(settings, programs(settings)) as service:
        with err.status("starting the service"):
            service.wait_ready(["api"])
        say(f"service started: {local_url(settings)}  (MLflow: {settings.mlflow_tracking_uri})")
        yield service


def _submit(client: Client, profile: str) -> JobView:
    """The demo job of this profile: the one in progress or done, or a new one."""
    spec = parse_spec({"target": "demo", "recipe": profile})
    content = spec.resolved_recipe().model_dump_json() + spec.model_dump_json()
    key = f"demo-{profile}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    job, replayed = client.submit({"target": "demo", "recipe": profile}, idempotency_key=key)
    while replayed and job.status in ("failed", "cancelled"):
        say(f"{job.id} {job.status} earlier; starting anew")
        after = hashlib.sha256(job.id.encode()).hexdigest()[:12]
        job, replayed = client.submit(
            {"target": "demo", "recipe": profile}, idempotency_key=f"{key}-{after}"
        )
    going_on = replayed and job.status != "succeeded"
    say(f"{job.id} {'goes on' if going_on else 'was done before' if replayed else 'submitted'}")
    return job


def _await_mirror(client: Client, job: JobView, tick: object) -> None:
    draft_id = (job.result or {}).get("draft_id")
    deadline = time.monotonic() + MIRROR_PATIENCE_S
    with err.status("waiting for MLflow to show the draft"):
        while draft_id and time.monotonic() < deadline:
            draft = client.draft(draft_id)
            if draft.mlflow_version:
                say(f"MLflow: {draft.name} version {draft.mlflow_version}, alias {draft.alias}")
                return
            if callable(tick):
                tick()
            time.sleep(1)
    say("MLflow has not taken the draft yet; it is sent when MLflow answers")


def _conclude(client: Client, job: JobView, home: Path, as_json: bool) -> None:
    """Say how it ended, with the report if there is one (a failed gate has one, too)."""
    if "report.md" in job.artifacts:
        _report(client, job, home, as_json)
    elif as_json:
        print_json(job)
    if job.status != "succeeded":
        message = job.error.message if job.error else job.status
        err.print(f"{job.id} {job.status}: {message}", style="red", markup=False)
        if job.error and job.error.hint:
            err.print(f"  → {job.error.hint}", markup=False)


def _report(client: Client, job: JobView, home: Path, as_json: bool) -> None:
    """Print the report, and keep it where a browser can open it."""
    folder = home / "reports" / job.id
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "report.md"):
        (folder / name).write_bytes(client.artifact(job.id, name))
    if as_json:
        print_json({"job": job.model_dump(mode="json"), "report": str(folder / "report.html")})
        return
    text = (folder / "report.md").read_text()
    out.print(Markdown(text)) if out.is_terminal else typer.echo(text)
    out.print()
    out.print(f"report  {folder / 'report.html'}", markup=False, soft_wrap=True)
    if draft_id := (job.result or {}).get("draft_id"):
        out.print(f"pull    updraft pull {draft_id} DIR", markup=False, soft_wrap=True)
        out.print(f"serve   {_serve_command(client, job)}", markup=False, soft_wrap=True)
    if failed := gates_failed(job):
        say(f"gates not passed: {', '.join(failed)}; the draft stays a candidate")


def _serve_command(client: Client, job: JobView) -> str:
    command: str = json.loads(client.artifact(job.id, "serving.json"))["serve"]
    return command


def _nothing() -> None:
    return None
