"""The migrations make exactly the tables of the models, and can be undone."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from sqlalchemy import inspect

from jobs.db import alembic_config, make_engine, migrate
from jobs.settings import Settings


def test_up_without_drift_and_down(settings: Settings, tmp_path: Path) -> None:
    migrate(settings)
    config = alembic_config(settings.database_url)
    command.check(config)
    command.downgrade(config, "base")
    engine = make_engine(settings.database_url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()
    migrate(settings)
