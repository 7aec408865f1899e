"""Which relay copies what to the model registry.

Revision: 20261201_mirror_claims
Follows: 20261201_hub_tokens
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261201_mirror_claims"
down_revision = "20261201_hub_tokens"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mirror_claims",
        sa.Column("thing", sa.String(length=300), nullable=False),
        sa.Column("token", sa.String(length=16), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("thing", name=op.f("pk_mirror_claims")),
    )


def downgrade() -> None:
    op.drop_table("mirror_claims")
