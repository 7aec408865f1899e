"""Commands about drafts: drafts, pull."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from api.cli.console import Exit, Fail, JsonFlag, connection, out, print_json, say
from api.cli.view import drafts_table
from api.client import Client
from api.schemas import DraftView

ALIASES = ("champion", "previous", "candidate")


def list_drafts(
    ctx: typer.Context,
    target: Annotated[str | None, typer.Option(help="Only drafts of this target.")] = None,
    alias: Annotated[str | None, typer.Option(help="Only drafts with this alias.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List drafts, newest first."""
    with connection(ctx).client() as client:
        page = client.drafts(base_model=target, alias=alias, limit=limit)
    if as_json:
        print_json(page)
    elif page.data:
        out.print(drafts_table(page.data, out.width))
    else:
        say("no drafts; a job that succeeds makes one")


def pull(
    ctx: typer.Context,
    draft: Annotated[
        str,
        typer.Argument(
            metavar="DRAFT[@alias]",
            help="A draft's id, its job's id, a target or a model name; the champion unless an "
            "alias is given.",
        ),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    as_json: JsonFlag = False,
) -> None:
    """Download a draft; every file is checked against its recorded hash."""
    with connection(ctx).client() as client:
        found = find_draft(client, draft)
        files = client.draft_files(found.id)
        for file in files:
            client.download(found.id, file, inside(directory, file.path))
            say(f"{file.path}  {file.size:,} bytes  sha256 {file.sha256[:12]} ok")
    if as_json:
        done = [file.model_dump(mode="json") for file in files]
        print_json({"draft": found.model_dump(mode="json"), "files": done})
    else:
        out.print(str(directory), markup=False)


DraftName = Annotated[
    str, typer.Argument(metavar="DRAFT", help="A draft's id, its job's id, or a model name.")
]


def promote(ctx: typer.Context, draft: DraftName, as_json: JsonFlag = False) -> None:
    """Make a draft champion, unless somebody else promotes one in the meantime."""
    with connection(ctx).client() as client:
        found, etag = client.draft_with_etag(draft)
        found = client.promote(found.id, if_match=etag)
    print_json(found) if as_json else say(f"{found.id} is {found.alias} of {found.name}")


def rollback(ctx: typer.Context, draft: DraftName, as_json: JsonFlag = False) -> None:
    """Make the previous champion champion again."""
    with connection(ctx).client() as client:
        found = client.roll_back(draft)
    print_json(found) if as_json else say(f"{found.id} is {found.alias} of {found.name}")


def find_draft(client: Client, text: str) -> DraftView:
    """By its id, its job's id, or the name of a target or model; the champion of several."""
    if text.startswith(("dft_", "job_")):
        named, _, alias = text.partition("@")
        draft = client.draft(named)
        if alias and draft.alias != alias:
            raise Fail(f"{draft.id} is {draft.alias}, not {alias}", code=Exit.BAD_INPUT)
        return draft
    # A target may hold an @ of its own (org/name@revision): only a known alias is one.
    head, _, tail = text.rpartition("@")
    which, aliases = (head, [tail]) if tail in ALIASES else (text, ["champion", "candidate"])
    for alias in aliases:
        found = client.drafts(base_model=which, alias=alias, limit=1).data
        found = found or client.drafts(name=which, alias=alias, limit=1).data
        if found:
            return found[0]
    raise Fail(
        f"no draft ({' or '.join(aliases)}) of a target or model named {which!r}",
        "`updraft drafts` lists them",
        Exit.BAD_INPUT,
    )


def inside(directory: Path, name: str) -> Path:
    """Where a draft's file goes; a name that leads out of the directory is refused."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise Fail(f"the service named a file outside the draft: {name!r}; nothing was written")
    return directory.joinpath(*path.parts)
