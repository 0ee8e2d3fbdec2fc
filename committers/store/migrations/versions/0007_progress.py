"""Progress: the token of streams whose destination cannot store one."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "penstock_progress",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("batch_id", sa.BigInteger),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("next_batch_id", sa.BigInteger),
        sa.Column("next_digest", sa.Text, nullable=False),
        sa.Column("next_rows_id", sa.Text, nullable=False),
        sa.Column("next_position", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
    )
