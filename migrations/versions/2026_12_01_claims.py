"""What is asked again and again is found without reading whole tables: the stages that wait, by
what they need and in the order they are taken in; an owner's jobs by status; jobs by target and
label; what was sent of the outbox, and for which job.

Revision: 20261201_claims
Follows: 20261130_tallies
"""

from __future__ import annotations

from alembic import op

revision = "20261201_claims"
down_revision = "20261130_tallies"
branch_labels = None
depends_on = None

INDEXES = (
    ("stages", ["status", "needs", "job_id"]),
    ("jobs", ["owner", "status", "id"]),
    ("jobs", ["target", "id"]),
    ("outbox", ["job_id"]),
    ("outbox", ["sent_at"]),
)


def upgrade() -> None:
    for table, columns in INDEXES:
        op.create_index(_name(table, columns), table, columns)
    op.create_index(
        "ix_jobs_labels",
        "jobs",
        ["labels"],
        postgresql_using="gin",
        postgresql_ops={"labels": "jsonb_path_ops"},
    )
    op.drop_index("ix_stages_status_not_before", table_name="stages")


def downgrade() -> None:
    op.create_index("ix_stages_status_not_before", "stages", ["status", "not_before"])
    op.drop_index("ix_jobs_labels", table_name="jobs")
    for table, columns in reversed(INDEXES):
        op.drop_index(_name(table, columns), table_name=table)


def _name(table: str, columns: list[str]) -> str:
    return "_".join(("ix", table, *columns))
