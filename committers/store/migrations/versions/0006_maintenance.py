"""When each maintenance step of a table was last done."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "penstock_maintenance",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("step", sa.Text, primary_key=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=False),
    )
