"""Webhooks, owners of API keys, drafts that were champion before or should not be used.

Revision: 20261130_webhooks
Follows: 20261130_shares
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "20261130_webhooks"
down_revision = "20261130_shares"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _constants("outbox", "kind", "hint", "mirror", "webhook")
    _constants("drafts", "alias", "candidate", "champion", "previous")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.alter_column("job_id", existing_type=sa.String(length=40), nullable=True)
    with op.batch_alter_table("drafts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("deprecated_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("deprecation", sa.Text(), nullable=True))
    _keys()
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", JSON, nullable=False),
        sa.Column("description", sa.String(length=256), nullable=False),
        sa.Column("all_owners", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("secret_generation", sa.Integer(), nullable=False),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index(op.f("ix_webhook_endpoints_owner"), "webhook_endpoints", ["owner"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("endpoint_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'delivered', 'failed')",
            name=op.f("ck_webhook_deliveries_status"),
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_deliveries_endpoint_id_webhook_endpoints"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index(
        op.f("ix_webhook_deliveries_endpoint_id_id"), "webhook_deliveries", ["endpoint_id", "id"]
    )
    op.create_index(op.f("ix_webhook_deliveries_created_at"), "webhook_deliveries", ["created_at"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_endpoints")
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_api_keys_owner"))
        batch_op.drop_column("idempotency_required")
        batch_op.drop_column("owner")
    with op.batch_alter_table("drafts", schema=None) as batch_op:
        batch_op.drop_column("deprecation")
        batch_op.drop_column("deprecated_at")
    op.execute("UPDATE drafts SET alias = 'candidate' WHERE alias = 'previous'")
    _constants("drafts", "alias", "candidate", "champion")
    op.execute("DELETE FROM outbox WHERE kind = 'webhook' OR job_id IS NULL")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.alter_column("job_id", existing_type=sa.String(length=40), nullable=False)
    _constants("outbox", "kind", "hint", "mirror")


def _keys() -> None:
    """A key that is there owns what it has made."""
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.add_column(sa.Column("owner", sa.String(length=40), nullable=True))
        batch_op.add_column(
            sa.Column(
                "idempotency_required", sa.Boolean(), server_default=sa.false(), nullable=False
            )
        )
    op.execute("UPDATE api_keys SET owner = id")
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.alter_column("owner", existing_type=sa.String(length=40), nullable=False)
        batch_op.create_index(batch_op.f("ix_api_keys_owner"), ["owner"])


def _constants(table: str, column: str, *values: str) -> None:
    allowed = ", ".join(f"'{value}'" for value in values)
    with op.batch_alter_table(table, schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f(f"ck_{table}_{column}"), type_="check")
        batch_op.create_check_constraint(
            batch_op.f(f"ck_{table}_{column}"), f"{column} IN ({allowed})"
        )
