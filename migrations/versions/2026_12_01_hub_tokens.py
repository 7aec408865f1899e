"""A hub token for each API key, encrypted.

Revision: 20261201_hub_tokens
Follows: 20261201_evaluations
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261201_hub_tokens"
down_revision = "20261201_evaluations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.add_column(sa.Column("hub_token", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("hub_token_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.drop_column("hub_token_at")
        batch_op.drop_column("hub_token")
