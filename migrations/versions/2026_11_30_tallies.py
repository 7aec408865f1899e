"""What happened so far, and when a relay last swept: what the metrics are read from.

Revision: 20261130_tallies
Follows: 20261130_attachments
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_tallies"
down_revision = "20261130_attachments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("le", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("stage", "outcome", "reason", "le", name=op.f("pk_tallies")),
    )
    op.create_table(
        "signs",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_signs")),
    )


def downgrade() -> None:
    op.drop_table("signs")
    op.drop_table("tallies")
