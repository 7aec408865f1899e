"""Attachments of drafts to checkpoints, and what serving engines observe of drafts.

Revision: 20261130_attachments
Follows: 20261130_webhooks
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "20261130_attachments"
down_revision = "20261130_webhooks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("drafts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("attached_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("drift", JSON, nullable=True))
    op.create_table(
        "attachments",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("fingerprint", JSON, nullable=True),
        sa.Column("decision", JSON, nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
            name=op.f("fk_attachments_job_id_jobs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attachments")),
        sa.UniqueConstraint("job_id", name=op.f("uq_attachments_job_id")),
    )
    op.create_index(op.f("ix_attachments_owner_id"), "attachments", ["owner", "id"])
    op.create_table(
        "observations",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("draft_id", sa.String(length=40), nullable=False),
        sa.Column("source", sa.String(length=128), nullable=False),
        sa.Column("rounds", sa.BigInteger(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("accepted_at", JSON, nullable=False),
        sa.Column("counters", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["draft_id"],
            ["drafts.id"],
            name=op.f("fk_observations_draft_id_drafts"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_observations")),
    )
    op.create_index(
        op.f("ix_observations_draft_id_source_id"), "observations", ["draft_id", "source", "id"]
    )


def downgrade() -> None:
    op.drop_table("observations")
    op.drop_table("attachments")
    with op.batch_alter_table("drafts", schema=None) as batch_op:
        batch_op.drop_column("drift")
        batch_op.drop_column("attached_at")
