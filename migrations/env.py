"""Alembic's environment. The URL comes from the caller, or else from the settings.

All migrations run in one transaction that rivals wait for, so that services that start together on
one database migrate it once: PostgreSQL by an advisory lock, SQLite by its one writer.
"""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Engine, Enum, event, text

from jobs import models, tally, webhooks_tables  # noqa: F401  their tables
from jobs.base import Base, Json, UtcDateTime
from jobs.db import make_engine
from jobs.settings import Settings

LOCK = 0x75706472  # "updr", among the advisory locks of the database


def _render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Types of ours as plain ones, so that a migration does not change when they do."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    if kind == "type" and item is Json:
        return "JSON"
    return False


def _keep_children(engine: Engine) -> None:
    """SQLite changes a table by writing it anew and dropping the old one, which with foreign keys
    on deletes every row that points to it. They can be turned off outside transactions only."""

    @event.listens_for(engine, "connect")
    def _off(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA foreign_keys=OFF")


def run() -> None:
    """Run the migrations over one connection."""
    url = context.config.attributes.get("url") or Settings().database_url
    engine = make_engine(url)
    if engine.dialect.name == "sqlite":
        _keep_children(engine)
    try:
        with engine.connect().execution_options(begin="IMMEDIATE") as connection:
            postgresql = connection.dialect.name == "postgresql"
            context.configure(
                connection=connection,
                target_metadata=Base.metadata,
                transactional_ddl=True,
                render_as_batch=not postgresql,
                render_item=_render,
                compare_type=True,
            )
            with context.begin_transaction():
                if postgresql:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
                context.run_migrations()
    finally:
        engine.dispose()


run()
