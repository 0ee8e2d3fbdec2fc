"""The tables of the manifest store in the newest schema version.

`migrations/` upgrades a database to this schema, and a test compares the two. All names have the prefix
`penstock_`, so that the store can share a Postgres database with other applications.
"""

from __future__ import annotations

from datetime import datetime, timezone

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

SCHEMA_VERSIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
)
"""All schema versions, oldest first: the revisions in `migrations/versions`."""

VERSION_TABLE = "penstock_alembic_version"


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC datetime with microseconds. SQLite has no time zones, so it is stored without
    one.
    """

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the store accepts only datetimes with a time zone, not {value!r}")
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
    # The table that the committed batches were added to, its version that contains the last of them, and the
    # id of that batch; the batch is NULL once an operator has accepted the table at that version.
    sa.Column("table_id", sa.Text, nullable=False),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("table_batch_id", sa.BigInteger),
    # Totals over the committed manifests, maintained by `finish`, so that status need not sum up many rows.
    sa.Column("committed_batches", sa.BigInteger, nullable=False),
    sa.Column("committed_rows", sa.BigInteger, nullable=False),
    sa.Column("committed_bytes", sa.BigInteger, nullable=False),
    # What a delivery process needs to open the table, as JSON, without secrets.
    sa.Column("settings", sa.Text, nullable=False),
    # Since when the query waits for its backlog to shrink.
    sa.Column("waiting_since", UtcDateTime),
    # Columns of `DeliveryState`. `alone_up_to` is its `isolate_until`.
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("retry_at", UtcDateTime),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("alone_up_to", sa.BigInteger, nullable=False, key="isolate_until"),
    sa.Column("parked_at", UtcDateTime),
    sa.Column("parked_by", sa.Text, nullable=False),
    sa.Column("parked_why", sa.Text, nullable=False),
    # Records up to this batch may have been pruned; -1 if none.
    sa.Column("pruned_up_to", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("query_id", "table_uri", name="penstock_streams_key"),
)

sa.Index("penstock_streams_of_table", streams.c.table_uri)

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
    # `AbortedBy`; NULL unless the batch is ABORTED. For an ABORTED batch NULL means `replay`.
    sa.Column("aborted_by", sa.Text),
    # The delivery that the batch is part of. A PREPARED batch can only be part of a PREPARED delivery.
    sa.Column("delivery_id", sa.BigInteger),
    sa.Column("oldest_event_at", UtcDateTime),
    # When its tasks could begin, and when all of them had ended.
    sa.Column("planned_at", UtcDateTime),
    sa.Column("written_at", UtcDateTime),
    sqlite_with_rowid=False,
)

IS_PREPARED = manifests.c.state == sa.literal_column("'PREPARED'")
"""A literal instead of a bound parameter, so that a cached query plan can use the partial index."""

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

# What each batch has read, see `lineage`. Kept as long as the record of the batch.
lineage = sa.Table(
    "penstock_lineage",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("ranges", sa.LargeBinary, nullable=False),
)

expiries = sa.Table(
    "penstock_expiries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("table_uri", sa.Text, nullable=False),
    sa.Column("table_id", sa.Text, nullable=False),
    sa.Column("planned_at", UtcDateTime, nullable=False),
    # When the snapshots were known to be removed from the table.
    sa.Column("expired_at", UtcDateTime),
    # How many of the files are deleted, in the order of the content.
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
    # Kept when the lease is released: a fence is never reused.
    sa.Column("fence", sa.BigInteger, nullable=False),
    # NULL after the lease is released.
    sa.Column("expires_at", UtcDateTime),
)

deliveries = sa.Table(
    "penstock_deliveries",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), nullable=False),
    sa.Column("first_batch_id", sa.BigInteger, nullable=False),
    sa.Column("last_batch_id", sa.BigInteger, nullable=False),
    # Digest of the last batch.
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("batches", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("is_compacted", sa.Boolean, nullable=False),
    sa.Column("files", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    # Files listed by the batches' own manifests.
    sa.Column("source_files", sa.BigInteger, nullable=False),
    sa.Column("source_bytes", sa.BigInteger, nullable=False),
    sa.Column("oldest_event_at", UtcDateTime),
    sa.Column("oldest_prepared_at", UtcDateTime, nullable=False),
    # Fence of the lease under which it was prepared.
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("prepared_at", UtcDateTime, nullable=False),
    sa.Column("finished_at", UtcDateTime),
    sa.Column("table_version", sa.BigInteger),
    sa.Column("reason", sa.Text, nullable=False),
    # When the source files, and the contents that list them, were deleted.
    sa.Column("sources_removed_at", UtcDateTime),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("is_empty", sa.Boolean, nullable=False),
    sa.Column("content_sha256", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # ids of pruned deliveries are never reused
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

progress = sa.Table(
    "penstock_progress",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    # Increases with each change.
    sa.Column("revision", sa.BigInteger, nullable=False),
    # The last batch that is delivered completely; NULL if there is none.
    sa.Column("batch_id", sa.BigInteger),
    sa.Column("digest", sa.Text, nullable=False),
    # Columns of `BatchInDelivery`; the id is NULL if no batch is in delivery.
    sa.Column("next_batch_id", sa.BigInteger),
    sa.Column("next_digest", sa.Text, nullable=False),
    sa.Column("next_rows_id", sa.Text, nullable=False),
    sa.Column("next_position", sa.BigInteger, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
)

# Rows that the destination has refused. Those of a COMMITTED batch wait for the dead-letter destination.
# Those of another batch become dead letters only if it is committed.
dead_letters = sa.Table(
    "penstock_dead_letters",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
    # Columns of `DeadLetter`.
    sa.Column("letter_id", sa.Text, primary_key=True),
    sa.Column("row_id", sa.Text, nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("refused_at", UtcDateTime, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

# Compactions of tables that share their files.
compactions = sa.Table(
    "penstock_compactions",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("prepared_at", UtcDateTime, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("content_sha256", sa.Text, nullable=False),
)

# Dead letters that an operator sends again. Each number is one batch, with a token in the destination: once
# that batch is committed, its letters were sent.
resends = sa.Table(
    "penstock_resends",
    metadata,
    sa.Column("stream_id", sa.ForeignKey("penstock_streams.id"), primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.Text, nullable=False),
    # A line `<batch id>/<letter id>` for each.
    sa.Column("letters", sa.Text, nullable=False),
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
