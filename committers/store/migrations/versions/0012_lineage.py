"""Which offsets of its sources each batch has read."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "penstock_lineage",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("ranges", sa.LargeBinary, nullable=False),
    )
