"""Which dead letters were sent again."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "penstock_resends",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("letters", sa.Text, nullable=False),
    )
