"""Streams, runs, manifests and their contents."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "penstock_streams",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("query_id", sa.Text, nullable=False),
        sa.Column("table_uri", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("query_name", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("table_id", sa.Text, nullable=False),
        sa.Column("table_version", sa.BigInteger),
        sa.Column("committed_batches", sa.BigInteger, nullable=False),
        sa.Column("committed_rows", sa.BigInteger, nullable=False),
        sa.Column("committed_bytes", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("query_id", "table_uri", name="penstock_streams_key"),
    )
    op.create_table(
        "penstock_runs",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("fence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("stream_id", "run_id", name="penstock_runs_run"),
    )
    op.create_table(
        "penstock_manifests",
        sa.Column(
            "stream_id",
            sa.Integer,
            sa.ForeignKey("penstock_streams.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("files", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("is_empty", sa.Boolean, nullable=False),
        sa.Column("content_sha256", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("prepared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("table_version", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "penstock_manifests_pending",
        "penstock_manifests",
        ["stream_id", "batch_id"],
        sqlite_where=sa.text("state = 'PREPARED'"),
        postgresql_where=sa.text("state = 'PREPARED'"),
    )
    op.create_table(
        "penstock_manifest_contents",
        sa.Column("stream_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id", "batch_id"], ["penstock_manifests.stream_id", "penstock_manifests.batch_id"]
        ),
    )
    if op.get_context().dialect.name == "postgresql":
        # Contents are already compressed: Postgres should not try to compress them again.
        op.execute("ALTER TABLE penstock_manifest_contents ALTER COLUMN content SET STORAGE EXTERNAL")
