"""The migrations make exactly the tables of the models, and can be undone."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from jobs.db import alembic_config, make_engine, migrate
from jobs.settings import Settings
from tests.jobs.conftest import migrate_at_once

OLD_JOB = """INSERT INTO jobs (id, status, version, owner, target, recipe, spec, labels, created_at,
    event_seq, mirrored_seq) VALUES ('job_1', 'queued', 1, 'local', 'demo', 'quick', '{}', '{}',
    '2026-01-01', 0, 0)"""
OLD_STAGE = """INSERT INTO stages (job_id, name, position, status, attempt)
    VALUES ('job_1', 'resolve', 0, 'queued', 0)"""


def test_up_without_drift_and_down(settings: Settings, tmp_path: Path) -> None:
    migrate(settings)
    config = alembic_config(settings.database_url)
    command.check(config)
    command.downgrade(config, "base")
    engine = make_engine(settings.database_url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()
    migrate(settings)


def test_rows_and_what_hangs_on_them_survive(settings: Settings) -> None:
    migrate(settings, "20261129_first")
    engine = make_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(text(OLD_JOB))
        connection.execute(text(OLD_STAGE))
    migrate(settings)
    command.downgrade(alembic_config(settings.database_url), "20261129_first")
    migrate(settings)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id, priority FROM jobs")).all() == [("job_1", 0)]
        assert connection.execute(text("SELECT name, needs FROM stages")).all() == [
            ("resolve", "any")
        ]
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    engine.dispose()


@pytest.mark.slow
def test_processes_that_start_together_migrate_once(settings: Settings) -> None:
    migrate_at_once(settings, 3)
    command.check(alembic_config(settings.database_url))
