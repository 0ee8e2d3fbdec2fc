"""Streams are found by their table: a store may have thousands."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_index("penstock_streams_of_table", "penstock_streams", ["table_uri"])
