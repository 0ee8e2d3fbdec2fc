"""The batch in the table's last known version: the table's token must not be older."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("penstock_streams", sa.Column("table_batch_id", sa.BigInteger))
