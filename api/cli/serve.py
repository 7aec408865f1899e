"""`updraft serve`: a registered draft and its target in a serving engine on this machine."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from api.cli.console import Exit, Fail, connection, say
from api.cli.drafts import find_draft, inside
from api.client import Client
from api.schemas import DraftView
from eagle3.config import TargetRef
from jobs.settings import Settings

ENGINES = ("llamacpp", "vllm", "sglang")
BESIDE = ("target.json", "serving.json")
"""What is wanted of a bundle beside the draft: which target is its own, and how it is served."""


def serve(
    ctx: typer.Context,
    draft: Annotated[
        str,
        typer.Argument(metavar="DRAFT[@alias]", help="As for `updraft pull`."),
    ],
    engine: Annotated[str, typer.Option(help=", ".join(ENGINES))] = ENGINES[0],
    port: Annotated[
        int | None, typer.Option(help="Where it listens; a free port if empty.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Draft tokens a round; as measured if empty.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="The target's directory, where only the service has it.")
    ] = None,
) -> None:
    """Serve a draft with its target here, until Ctrl-C; prints a curl line."""
    if engine not in ENGINES:
        raise typer.BadParameter(f"expected {', '.join(ENGINES)}", param_hint="--engine")
    if find_spec("torch") is None:
        raise Fail(
            "serving needs more packages than this installation has",
            "pip install 'updraft[worker]'",
            Exit.BAD_INPUT,
        )
    settings = Settings()
    with connection(ctx).client() as client:
        found = find_draft(client, draft)
        if found.deprecated_at is not None:
            say(f"warning: {found.id} is deprecated: {found.deprecation}")
        where = str(target) if target is not None else _reference(found)
        folder = settings.cache / "drafts" / found.manifest_sha256[:32]
        _fetch(client, found, folder)
    command = [*settings.stage_command, "serve", where, str(folder), "--engine", engine]
    for name, value in (("--port", port), ("--tokens", tokens)):
        command += [name, str(value)] if value is not None else []
    _become(command, settings)


def _reference(draft: DraftView) -> str:
    """What the target is called: of a hub, at the commit that the draft was trained for."""
    kind = TargetRef.parse(draft.target).kind
    if kind in ("s3", "mlflow"):
        raise Fail(
            f"{draft.target} is fetched by the service's workers alone",
            "download it, and name its directory: --target DIR",
            Exit.BAD_INPUT,
        )
    return draft.target_resolved if kind == "hub" else draft.target


def _fetch(client: Client, draft: DraftView, folder: Path) -> None:
    """Download what is not there yet; every file is checked against its recorded hash."""
    for file in client.draft_files(draft.id):
        path = inside(folder, file.path)
        if not (file.path.startswith("draft/") or file.path in BESIDE):
            continue
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256:
            continue
        client.download(draft.id, file, path)
        say(f"{file.path}  {file.size:,} bytes")


def _become(command: list[str], settings: Settings) -> None:
    """Put the server in this process's place: Ctrl-C is its own, and nothing is left over it."""
    environment = {**os.environ, "UPDRAFT_CACHE": str(settings.cache)}
    if settings.hub_token is not None:
        environment["HF_TOKEN"] = settings.hub_token.get_secret_value()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, environment)  # noqa: S606  the command of the settings
