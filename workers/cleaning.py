"""Run directories of ended jobs: kept for a while on their worker, for a retry and for a look."""

from __future__ import annotations

import logging
import shutil
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from jobs.models import Job
from workers.runtime import Runtime

log = logging.getLogger(__name__)

BATCH = 500


def clean_now_and_then(rt: Runtime) -> None:
    """Clean at the start and then every `gc_seconds`, until the worker is told to go."""
    while rt.settings.gc_seconds:
        try:
            clean_runs(rt)
        except (SQLAlchemyError, OSError) as e:
            log.warning("run directories not cleaned: %s", type(e).__name__)
        if rt.stop.wait(rt.settings.gc_seconds):
            return


def clean_runs(rt: Runtime) -> list[Path]:
    """Remove the run directories of jobs that ended long ago. Returns them.

    A directory that is no job's is left alone: it is somebody else's.
    """
    before = rt.clock() - timedelta(days=rt.settings.keep_runs_days)
    folders = {path.name: path for path in rt.settings.runs_dir.iterdir() if path.is_dir()}
    names, removed = sorted(folders), []
    for start in range(0, len(names), BATCH):
        query = select(Job.id).where(
            Job.id.in_(names[start : start + BATCH]), Job.finished_at < before
        )
        with rt.db.read() as session:
            ended = list(session.scalars(query))
        for job_id in ended:
            shutil.rmtree(folders[job_id], ignore_errors=True)
            removed.append(folders[job_id])
    if removed:
        log.info("removed %d run directories of ended jobs", len(removed))
    return removed
