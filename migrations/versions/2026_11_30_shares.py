"""Pausing, priorities, what stages need and workers have, usage, quotas and stored outputs.

Revision: 20261130_shares
Follows: 20261129_first
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_shares"
down_revision = "20261129_first"
branch_labels = None
depends_on = None

OLD = "'queued', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled'"
NEW = "'queued', 'running', 'pausing', 'paused', 'cancelling', 'succeeded', 'failed', 'cancelled'"


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("priority", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("waiting", sa.Text(), nullable=True))
    _statuses(NEW)
    with op.batch_alter_table("stages", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("needs", sa.String(length=48), server_default="any", nullable=False)
        )
        batch_op.add_column(sa.Column("gpus", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(
            sa.Column("leased_seconds", sa.Float(), server_default="0", nullable=False)
        )
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("has", sa.String(length=48), server_default="cpu", nullable=False)
        )
    op.create_table(
        "outputs",
        sa.Column("prefix", sa.String(length=255), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("deleting", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("prefix", name=op.f("pk_outputs")),
    )
    with op.batch_alter_table("outputs", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_outputs_stage_digest"), ["stage", "digest"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_outputs_owner"), ["owner"], unique=False)
    op.create_table(
        "usage",
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "day", name=op.f("pk_usage")),
    )
    op.create_table(
        "quotas",
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("max_active", sa.Integer(), nullable=True),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("gpu_hours_per_day", sa.Float(), nullable=True),
        sa.Column("storage_gb", sa.Float(), nullable=True),
        sa.Column("max_priority", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_quotas")),
    )


def downgrade() -> None:
    op.drop_table("quotas")
    op.drop_table("usage")
    op.drop_table("outputs")
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.drop_column("has")
    with op.batch_alter_table("stages", schema=None) as batch_op:
        batch_op.drop_column("leased_seconds")
        batch_op.drop_column("gpus")
        batch_op.drop_column("needs")
    op.execute("UPDATE jobs SET status = 'cancelling' WHERE status = 'pausing'")
    op.execute("UPDATE jobs SET status = 'queued' WHERE status = 'paused'")
    _statuses(OLD)
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("waiting")
        batch_op.drop_column("priority")


def _statuses(allowed: str) -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("ck_jobs_status"), type_="check")
        batch_op.create_check_constraint(batch_op.f("ck_jobs_status"), f"status IN ({allowed})")
