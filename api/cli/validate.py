"""The command `validate`: what a job would take, without submitting it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli.console import JsonFlag, connection, out, print_json, say
from api.cli.jobs import job_spec
from eagle3.plan import describe


def validate(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Job file.")] = None,
    target: Annotated[str | None, typer.Option(help="Target model; overrides the file's.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe; overrides the file's.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Recipe key, such as train.epochs=2.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Device to plan for, such as h100; else the service's cores.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of an hour of all of them.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a job and plan it: sizes, memory, hours, money. Submits nothing."""
    spec = job_spec(file, target, recipe, overrides or [], [])
    with connection(ctx).client() as client:
        found = client.validate(spec, gpu=gpu, gpus=gpus, price=price)
    if as_json:
        print_json(found)
        return
    if found.plan is not None:
        out.print(describe(found.plan), markup=False, soft_wrap=True)
    for line in found.unknown:
        say(f"not known: {line}")
    say(f"the job is valid; its draft would be registered as {found.model_name}")
