"""What a job's events say as series: its metrics over the steps, and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.models import JobEvent, Stage

MOST_EVENTS = 5000
"""Metric events read for one answer: each holds about a second of a stage, so that a longer job's
are read in strides."""


@dataclass(frozen=True)
class Point:
    step: int
    value: float
    at: datetime


@dataclass
class Series:
    """The values of one metric of one stage, in the order in which they came."""

    stage: str
    name: str
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was announced, and what its stage had measured by then."""

    stage: str
    step: int
    at: datetime
    size: int | None
    metrics: dict[str, float]
    resumable: bool


def metric_series(
    session: Session, job_id: str, *, name: str | None = None, most: int = 500
) -> tuple[list[Series], bool]:
    """The series of a job, with `most` points each.

    Returns:
        The series by stage and name, and whether any point was left out. The last point of a
        stretch stands for the stretch; a series' last point is always there.
    """
    events, strides = _events(session, job_id)
    found: dict[tuple[str, str], Series] = {}
    for event in events:
        stage = str(event.data.get("stage", ""))
        for point in event.data.get("points", []):
            at = datetime.fromisoformat(point["t"]) if point.get("t") else event.created_at
            for metric, value in point["metrics"].items():
                if name is None or metric == name:
                    series = found.setdefault((stage, metric), Series(stage, metric))
                    series.points.append(Point(int(point["step"]), float(value), at))
    thinned = strides > 1
    for series in found.values():
        thinned |= len(series.points) > most
        series.points = thin(series.points, most)
    return [found[key] for key in sorted(found)], thinned


def thin(points: list[Point], most: int) -> list[Point]:
    """At most so many of the points, evenly, the last one among them."""
    if len(points) <= most:
        return points
    return [points[(i + 1) * len(points) // most - 1] for i in range(most)]


def checkpoints(session: Session, job_id: str) -> list[Checkpoint]:
    """A job's checkpoints, oldest first."""
    query = (
        select(JobEvent)
        .where(JobEvent.job_id == job_id, JobEvent.type.in_(("checkpoint", "metrics")))
        .order_by(JobEvent.seq)
        .execution_options(yield_per=500)
    )
    kept = session.scalars(select(Stage.checkpoint).where(Stage.job_id == job_id))
    resumable = {(c.get("path"), c.get("uri")) for c in kept if c is not None}
    latest: dict[str, dict[str, float]] = {}
    found = []
    for event in session.scalars(query):
        data: dict[str, Any] = event.data
        stage = str(data.get("stage", ""))
        if event.type == "metrics":
            latest[stage] = data.get("metrics", {})
            continue
        found.append(
            Checkpoint(
                stage,
                int(data["step"]),
                event.created_at,
                data.get("bytes"),
                latest.get(stage, {}),
                (data.get("path"), data.get("uri")) in resumable,
            )
        )
    return found


def _events(session: Session, job_id: str) -> tuple[list[JobEvent], int]:
    """Metric events, every n-th where there are too many, and that n."""
    wanted = (JobEvent.job_id == job_id, JobEvent.type == "metrics")
    count = session.scalar(select(func.count()).where(*wanted)) or 0
    strides = -(-count // MOST_EVENTS) or 1
    number = func.row_number().over(order_by=JobEvent.seq.desc()).label("number")
    numbered = select(JobEvent.seq, number).where(*wanted).subquery()
    query = (
        select(JobEvent)
        .join(numbered, JobEvent.seq == numbered.c.seq)
        .where(*wanted, (numbered.c.number - 1) % strides == 0)
        .order_by(JobEvent.seq)
    )
    return list(session.scalars(query)), strides
