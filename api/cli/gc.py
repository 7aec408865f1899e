"""`updraft gc`: what the object store holds that nobody needs, and its removal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from api.cli.console import JsonFlag, out, print_json, say
from jobs.db import Database
from jobs.garbage import collect
from jobs.quotas import GB
from jobs.settings import Settings
from jobs.store import open_store


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove stage outputs and checkpoints that no job needs, by the settings' ages and sizes.

    Works on the machine that has the database and the store, with the service running or not.
    """
    settings = Settings()
    db = Database(settings.database_url)
    try:
        waste = collect(db, open_store(settings), settings, db.now(), dry_run=dry_run)
    finally:
        db.close()
    if as_json:
        print_json([{"prefix": w.prefix, "bytes": w.bytes, "why": w.why} for w in waste])
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("prefix", "MB", "why"):
        table.add_column(column, justify="right" if column == "MB" else "left")
    for one in waste:
        table.add_row(Text(one.prefix), f"{one.bytes / 1e6:,.1f}", one.why)
    if waste:
        out.print(table)
    total = sum(one.bytes for one in waste) / GB
    say(f"{'would remove' if dry_run else 'removed'} {len(waste)} prefixes, {total:.2f} GB")
