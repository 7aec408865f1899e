"""The migrations make exactly the tables of the models, and can be undone."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect

from jobs.db import alembic_config, make_engine, migrate
from jobs.settings import Settings
from tests.jobs.conftest import migrate_at_once


def test_up_without_drift_and_down(settings: Settings, tmp_path: Path) -> None:
    migrate(settings)
    config = alembic_config(settings.database_url)
    command.check(config)
    command.downgrade(config, "base")
    engine = make_engine(settings.database_url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()
    migrate(settings)


@pytest.mark.slow
def test_processes_that_start_together_migrate_once(settings: Settings) -> None:
    migrate_at_once(settings, 3)
    command.check(alembic_config(settings.database_url))
