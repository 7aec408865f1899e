"""Tables as years of use leave them: jobs that went through the service's own functions, copied in
the database with all that belongs to them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Text,
    case,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    text,
    true,
    update,
)
from sqlalchemy.orm import Session

from benchmarks.load_service import SPEC, Service
from jobs import endings, leases, service
from jobs.base import Base
from jobs.drafts import add_draft
from jobs.errors import FailureReason
from jobs.ids import new_id
from jobs.models import Draft, IdempotencyRecord, Job, JobEvent, Outbox, Stage
from jobs.spec import JobSpec

FAILS, OWN, TARGETS, TEAMS = 10, 3, 100, 7
"""Every tenth job has failed, every third is the asking owner's; how many targets and teams."""
BATCH = 10_000


def fill(one: Service, have: int, size: int) -> None:
    """Add jobs `have` to `size`, and the two that they are copies of: all have ended, and those
    that did not fail have a draft."""
    with one.db.write() as session:
        good, bad = (_ended(session, one, well=well) for well in (True, False))
    for start in range(have, size, BATCH):
        with one.db.write() as session:
            for template, fails in ((good, False), (bad, True)):
                _copies(session, one, template, start, min(size, start + BATCH), fails=fails)
    with one.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # as autovacuum does in time


def _ended(session: Session, one: Service, *, well: bool) -> str:
    """A job that has gone through its stages, or failed at the sixth, as a worker writes it."""
    now, settings = one.db.now(), one.settings
    key = new_id("key_")
    job = service.submit(
        session,
        JobSpec.model_validate(SPEC),
        settings=settings,
        now=now,
        owner=one.owner,
        idempotency_key=key,
    ).job
    while lease := leases.claim(session, "worker-1:7:a1b2c3", settings=settings, now=now):
        figures = {"loss": 2.5, "tau": 1.4}
        points = [{"t": now.isoformat(), "step": n, "metrics": figures} for n in range(20)]
        data = {"step": 19, "metrics": figures, "points": points}
        events = [leases.Event("metrics", "step 19", data=data)]
        progress = {"done": 20, "total": 20, "unit": "steps", "metrics": figures}
        leases.report(session, lease, now=now, progress=progress, events=events)
        if not well and lease.stage == "train":
            failure = endings.Failure(FailureReason.BAD_INPUT, "no answers", "look at the data")
            endings.fail(session, lease, failure, settings=settings, now=now)
            break
        result = _registered(session, one, job.id, now) if lease.stage == "register" else None
        summary = {"tokens": 29_210, "weights_sha256": "w" * 64, "tau": 1.45}
        endings.finish(
            session, lease, now=now, summary=summary, digest="d" * 64, uri=f"outputs/{job.id}",
            seconds=12.5, result=result,
        )  # fmt: skip
    session.execute(update(Outbox).values(sent_at=now))
    return job.id


def _registered(session: Session, one: Service, job_id: str, now: datetime) -> dict[str, Any]:
    draft = Draft(
        id=new_id("dft_", now), job_id=job_id, owner=one.owner, name="eagle3--demo", target="demo",
        target_resolved="demo@sha256:abc", weights_sha256="w" * 64, tokenizer_sha256="t" * 64,
        template_sha256="m" * 64, capture_layers=[2, 14, 26], metrics={"tau": 1.45},
        uri=f"drafts/{job_id}", manifest_sha256="0" * 64, created_at=now,
    )  # fmt: skip
    add_draft(session, draft, champion=False, now=now)
    return {"draft_id": draft.id, "metrics": draft.metrics, "gates": []}


def _copies(
    session: Session, one: Service, template: str, start: int, end: int, *, fails: bool
) -> None:
    """Copies of a job and of every row that names it, under those numbers from `start` to before
    `end` that are of its kind; all older than whatever is made from now on."""
    numbers = func.generate_series(start, end - 1).table_valued(column("n", Integer))
    n = numbers.render_derived().c.n
    digits = func.lpad(cast(n, Text), 8, "0").concat(func.substr(func.md5(cast(n, Text)), 1, 16))
    job, target = literal("job_00").concat(digits), _numbered("org/model-", n, TARGETS)
    owner = case((n % OWN == 0, one.owner), else_="key_another")
    labels = func.jsonb_build_object("team", cast(n % TEAMS, Text))
    theirs: dict[type[Base], dict[str, Any]] = {
        Job: {
            "id": job, "target": target, "owner": owner, "labels": labels,
            "mirrored_seq": Job.event_seq,
        },
        Stage: {"job_id": job},
        JobEvent: {"job_id": job},
        Outbox: {"job_id": job},
        IdempotencyRecord: {"job_id": job, "owner": owner, "key": literal("load-").concat(digits)},
        Draft: {
            "id": literal("dft_00").concat(digits), "job_id": job, "owner": owner,
            "target": target, "target_resolved": target.concat("@main"),
            "name": _numbered("eagle3--org--model-", n, TARGETS),
        },
    }  # fmt: skip
    kind = (n % FAILS == 0) if fails else (n % FAILS != 0)
    for model, changed in theirs.items():
        table = model.__table__
        names = [c.name for c in table.columns if c.autoincrement is not True]
        columns = [changed.get(name, table.columns[name]).label(name) for name in names]
        rows = select(*columns).select_from(table.join(n.table, true()))
        of = table.columns["id" if model is Job else "job_id"]
        session.execute(insert(model).from_select(names, rows.where(of == template, kind)))


def _numbered(prefix: str, n: ColumnElement[int], most: int) -> ColumnElement[str]:
    return literal(prefix).concat(cast(n % most, Text))
