"""Alembic's environment. The URL comes from the caller, or else from the settings."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Enum

from jobs.db import make_engine
from jobs.models import Base, Json, UtcDateTime
from jobs.settings import Settings


def _render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Types of ours as plain ones, so that a migration does not change when they do."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    if kind == "type" and item is Json:
        return "JSON"
    return False


def run() -> None:
    """Run the migrations over one connection."""
    url = context.config.attributes.get("url") or Settings().database_url
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            context.configure(
                connection=connection,
                target_metadata=Base.metadata,
                render_as_batch=connection.dialect.name == "sqlite",
                render_item=_render,
                compare_type=True,
            )
            with context.begin_transaction():
                context.run_migrations()
    finally:
        engine.dispose()


run()
