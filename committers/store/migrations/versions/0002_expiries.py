"""Expiries: the files of expired snapshots that wait to be deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "penstock_expiries",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_uri", sa.Text, nullable=False),
        sa.Column("table_id", sa.Text, nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expired_at", sa.DateTime(timezone=True)),
        sa.Column("deleted", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("content_sha256", sa.Text, nullable=False),
    )
    op.create_index("penstock_expiries_of_table", "penstock_expiries", ["table_id"])
    if op.get_context().dialect.name == "postgresql":
        # Contents are already compressed: Postgres should not try to compress them again.
        op.execute("ALTER TABLE penstock_expiries ALTER COLUMN content SET STORAGE EXTERNAL")
