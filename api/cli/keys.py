"""`updraft keys`: API keys of a full-mode service, made on the machine that has its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.table import Table
from rich.text import Text

from api.cli.console import Exit, Fail, JsonFlag, out, print_json, say
from api.cli.view import age
from jobs.db import Database
from jobs.ids import utcnow
from jobs.keys import SCOPES, create_key, list_keys, revoke_key
from jobs.models import ApiKey
from jobs.settings import Settings

app = typer.Typer(help="API keys (full mode).", no_args_is_help=True)

USER_SCOPES = ["jobs:read", "jobs:write", "drafts:read"]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is or what for, such as `ci`.")],
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", help=f"One of {', '.join(SCOPES)} (repeatable)."),
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, help="Days until it expires; never unless given.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key. It is shown once and kept nowhere."""
    with _database() as (db, pepper):
        now = db.now()
        expires = now + timedelta(days=days) if days else None
        with db.write() as session:
            row, token = create_key(
                session, name, scopes or USER_SCOPES, pepper=pepper, now=now, expires_at=expires
            )
    if as_json:
        print_json({**_plain(row), "key": token})
    else:
        say(f"{row.id} may {', '.join(row.scopes)}; keep the key, it is not shown again:")
        typer.echo(token)


@app.command("list")
def list_all(as_json: JsonFlag = False) -> None:
    """List keys, revoked ones too."""
    with _database() as (db, _), db.read() as session:
        rows = list_keys(session)
    if as_json:
        print_json([_plain(row) for row in rows])
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("key", "name", "starts with", "scopes", "state", "last used"):
        table.add_column(column)
    for row in rows:
        used = f"{age(row.last_used_at, utcnow())} ago" if row.last_used_at else "never"
        table.add_row(row.id, Text(row.name), row.hint, ", ".join(row.scopes), _state(row), used)
    out.print(table)


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Its id: key_…")],
    as_json: JsonFlag = False,
) -> None:
    """Make a key useless from now on."""
    with _database() as (db, _), db.write() as session:
        row = revoke_key(session, key_id, now=db.now())
    if as_json:
        print_json(_plain(row))
    else:
        say(f"{row.id} ({row.name}) revoked")


@contextmanager
def _database() -> Iterator[tuple[Database, SecretStr]]:
    settings = Settings()
    if settings.mode != "full" or settings.api_key_pepper is None:
        raise Fail(
            "embedded mode has no API keys: it answers on this machine only",
            "set UPDRAFT_MODE=full and its servers (docs/settings.md)",
            Exit.BAD_INPUT,
        )
    db = Database(settings.database_url)
    try:
        yield db, settings.api_key_pepper
    finally:
        db.close()


def _plain(row: ApiKey) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "hint": row.hint,
        "scopes": row.scopes,
        "created_at": _text(row.created_at),
        "expires_at": _text(row.expires_at),
        "last_used_at": _text(row.last_used_at),
        "revoked_at": _text(row.revoked_at),
    }


def _text(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _state(row: ApiKey) -> str:
    if row.revoked_at:
        return "revoked"
    if row.expires_at:
        return "expired" if row.expires_at <= utcnow() else f"until {row.expires_at:%Y-%m-%d}"
    return "valid"
