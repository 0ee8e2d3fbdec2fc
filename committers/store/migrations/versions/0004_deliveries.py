"""Deliveries, their leases, and operator actions."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("penstock_manifests", sa.Column("delivery_id", sa.BigInteger))
    op.add_column("penstock_manifests", sa.Column("oldest_event_at", sa.DateTime(timezone=True)))
    for column in (
        sa.Column("settings", sa.Text, nullable=False, server_default=""),
        sa.Column("waiting_since", sa.DateTime(timezone=True)),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("retry_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text, nullable=False, server_default=""),
        sa.Column("alone_up_to", sa.BigInteger, nullable=False, server_default="-1"),
        sa.Column("parked_at", sa.DateTime(timezone=True)),
        sa.Column("parked_by", sa.Text, nullable=False, server_default=""),
        sa.Column("parked_why", sa.Text, nullable=False, server_default=""),
        sa.Column("pruned_up_to", sa.BigInteger, nullable=False, server_default="-1"),
    ):
        op.add_column("penstock_streams", column)
    _create_leases()
    _create_deliveries()
    _create_decisions()


def _create_leases() -> None:
    op.create_table(
        "penstock_leases",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
    )


def _create_deliveries() -> None:
    op.create_table(
        "penstock_deliveries",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("stream_id", sa.Integer, sa.ForeignKey("penstock_streams.id"), nullable=False),
        sa.Column("first_batch_id", sa.BigInteger, nullable=False),
        sa.Column("last_batch_id", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("batches", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("is_compacted", sa.Boolean, nullable=False),
        sa.Column("files", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("source_files", sa.BigInteger, nullable=False),
        sa.Column("source_bytes", sa.BigInteger, nullable=False),
        sa.Column("oldest_event_at", sa.DateTime(timezone=True)),
        sa.Column("oldest_prepared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("prepared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("table_version", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("sources_removed_at", sa.DateTime(timezone=True)),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("is_empty", sa.Boolean, nullable=False),
        sa.Column("content_sha256", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "penstock_deliveries_unfinished",
        "penstock_deliveries",
        ["stream_id"],
        unique=True,
        sqlite_where=sa.text("state = 'PREPARED'"),
        postgresql_where=sa.text("state = 'PREPARED'"),
    )
    op.create_index("penstock_deliveries_of_stream", "penstock_deliveries", ["stream_id", "id"])
    if op.get_context().dialect.name == "postgresql":
        # Contents are already compressed: Postgres should not try to compress them again.
        op.execute("ALTER TABLE penstock_deliveries ALTER COLUMN content SET STORAGE EXTERNAL")


def _create_decisions() -> None:
    op.create_table(
        "penstock_decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("stream_id", sa.Integer, sa.ForeignKey("penstock_streams.id"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("batch_id", sa.BigInteger),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_index("penstock_decisions_of_stream", "penstock_decisions", ["stream_id", "id"])
