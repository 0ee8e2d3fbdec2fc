"""The tables of the manifest store, as the newest schema version has them.

`migrations/` holds how a database gets there; a test compares the two. All names carry the prefix
`penstock_`, so that the store can share a Postgres database with other applications.
"""

from __future__ import annotations

from datetime import datetime, timezone

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

SCHEMA_VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""All schema versions, oldest first: the revisions in `migrations/versions`."""

VERSION_TABLE = "penstock_alembic_version"


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime, in microseconds; SQLite, which knows no time zones, holds it without one."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the store takes datetimes with a time zone, not {value!r}")
        utc = value.astimezone(timezone.utc)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


metadata = sa.MetaData()

streams = sa.Table(
    "penstock_streams",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("query_id", sa.Text, nullable=False),
    sa.Column("table_uri", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("query_name", sa.Text, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    # The table that the committed batches went into, its version that holds the last of them, and which that
    # is; no batch once an operator has accepted the table as it was at that version.
    sa.Column("table_id", sa.Text, nullable=False),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("table_batch_id", sa.BigInteger),
    # Sums over the committed manifests, kept by `finish`: status never adds up a million rows.
    sa.Column("committed_batches", sa.BigInteger, nullable=False),
    sa.Column("committed_rows", sa.BigInteger, nullable=False),
    sa.Column("committed_bytes", sa.BigInteger, nullable=False),
    # What a delivery process needs to open the table, as JSON, without secrets.
    sa.Column("settings", sa.Text, nullable=False),
    # Since when the query waits for its backlog to shrink.
    sa.Column("waiting_since", UtcDateTime),
    # How the deliveries are going: `DeliveryState`.
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("retry_at", UtcDateTime),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("alone_up_to", sa.BigInteger, nullable=False, key="isolate_until"),
    sa.Column("parked_at", UtcDateTime),
    sa.Column("parked_by", sa.Text, nullable=False),
    sa.Column("parked_why", sa.Text, nullable=False),
    # Records of batches up to this one may be pruned; -1 while none is.
    sa.Column("pruned_up_to", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("query_id", "table_uri", name="penstock_streams_key"),
)

runs = sa.Table(
    "penstock_runs",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("fence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("claimed_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("stream_id", "run_id", name="penstock_runs_run"),
)

manifests = sa.Table(
    "penstock_manifests",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
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
    sa.Column("prepared_at", UtcDateTime, nullable=False),
    sa.Column("finished_at", UtcDateTime),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("reason", sa.Text, nullable=False),
    # `AbortedBy`; NULL unless the batch is ABORTED. Of an ABORTED batch NULL stands for `replay`.
    sa.Column("aborted_by", sa.Text),
    # The delivery that the batch is part of: of a PREPARED batch, one that is PREPARED too.
    sa.Column("delivery_id", sa.BigInteger),
    sa.Column("oldest_event_at", UtcDateTime),
    sqlite_with_rowid=False,
)

IS_PREPARED = manifests.c.state == sa.literal_column("'PREPARED'")
"""Spelled out, not a bound parameter: a plan made without the value uses the partial index too."""

sa.Index(
    "penstock_manifests_pending",
    manifests.c.stream_id,
    manifests.c.batch_id,
    sqlite_where=IS_PREPARED,
    postgresql_where=IS_PREPARED,
)

contents = sa.Table(
    "penstock_manifest_contents",
    metadata,
    sa.Column("stream_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(
        ["stream_id", "batch_id"], ["penstock_manifests.stream_id", "penstock_manifests.batch_id"]
    ),
)

expiries = sa.Table(
    "penstock_expiries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("table_uri", sa.Text, nullable=False),
    sa.Column("table_id", sa.Text, nullable=False),
    sa.Column("planned_at", UtcDateTime, nullable=False),
    # Since when the snapshots are known to be gone from the table.
    sa.Column("expired_at", UtcDateTime),
    # How many of the files are deleted, in the order in which the content lists them.
    sa.Column("deleted", sa.BigInteger, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("content_sha256", sa.Text, nullable=False),
)

sa.Index("penstock_expiries_of_table", expiries.c.table_id)

leases = sa.Table(
    "penstock_leases",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    # Stays when the lease is released: a fence is never given out twice.
    sa.Column("fence", sa.BigInteger, nullable=False),
    # None once it is released.
    sa.Column("expires_at", UtcDateTime),
)

deliveries = sa.Table(
    "penstock_deliveries",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), nullable=False),
    sa.Column("first_batch_id", sa.BigInteger, nullable=False),
    sa.Column("last_batch_id", sa.BigInteger, nullable=False),
    # Of the last batch.
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("batches", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("is_compacted", sa.Boolean, nullable=False),
    sa.Column("files", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    # Of the batches' own manifests.
    sa.Column("source_files", sa.BigInteger, nullable=False),
    sa.Column("source_bytes", sa.BigInteger, nullable=False),
    sa.Column("oldest_event_at", UtcDateTime),
    sa.Column("oldest_prepared_at", UtcDateTime, nullable=False),
    # Of the lease that it was prepared under.
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("prepared_at", UtcDateTime, nullable=False),
    sa.Column("finished_at", UtcDateTime),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("reason", sa.Text, nullable=False),
    # Since when the files that it replaced, and the contents that name them, are gone.
    sa.Column("sources_removed_at", UtcDateTime),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("is_empty", sa.Boolean, nullable=False),
    sa.Column("content_sha256", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # never the id of one that was pruned
)

IS_UNFINISHED = deliveries.c.state == sa.literal_column("'PREPARED'")

sa.Index(
    "penstock_deliveries_unfinished",
    deliveries.c.stream_id,
    unique=True,
    sqlite_where=IS_UNFINISHED,
    postgresql_where=IS_UNFINISHED,
)
sa.Index("penstock_deliveries_of_stream", deliveries.c.stream_id, deliveries.c.id)

maintenance = sa.Table(
    "penstock_maintenance",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("step", sa.Text, primary_key=True),
    sa.Column("done_at", UtcDateTime, nullable=False),
)

operator_actions = sa.Table(
    "penstock_decisions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("batch_id", sa.BigInteger),
    sa.Column("why", sa.Text, nullable=False),
)

sa.Index("penstock_decisions_of_stream", operator_actions.c.stream_id, operator_actions.c.id)
