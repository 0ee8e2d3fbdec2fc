"""Options that every sink has, and those of lake tables. Parsed once, on the driver, frozen from then on."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from ...committers.deliveries.policy import DeliveryPolicy
from ...committers.maintenance import MaintenancePolicy
from ...committers.origins import origin
from ...committers.safe_text import has_credentials
from ...writers.local_path import local_path
from .parsing import MIB, Option, Prefix, columns, count, duration_s, flag, one_of, properties, size, text

TARGET_FILE_BYTES = 128 * MIB
COMPRESSION = "zstd"


class NewQuery(Enum):
    """What happens when a query is new, and an earlier one of the same origin has written the table."""

    WARN = "warn"
    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What all sinks have in common."""

    checkpoint_location: str | None = None
    store: str | None = field(default=None, repr=False)
    query_name: str = ""
    new_query: NewQuery = NewQuery.WARN
    create_table: bool = True
    add_columns: bool = False
    commit_attempts_max: int = 100
    event_time: str | None = None
    delivered_max: int = 10_000
    delivered_s_max: float = 7 * 86_400.0
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The text of what was given, by the options' documented names, without what may be secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions(StreamOptions):
    """Whether and how the batches are delivered by a delivery process."""

    is_decoupled: bool = False
    backlog_batches_max: int = 10_000
    backlog_bytes_max: int = 100 * 1024 * MIB
    backlog_s_max: int = 86_400
    backlog_wait_s: int = 600
    deliver_after_s: int = 60
    deliver_after_bytes: int | None = None
    deliver_after_batches: int = 1000
    deliver_after_checkpoint: bool = False
    delivery_tries_max: int = 5

    @property
    def delivery_policy(self) -> DeliveryPolicy:
        """When the stream is delivered: at the latest when its backlog is full."""
        after_bytes = self.deliver_after_bytes or self.deliver_after_bytes_default
        return DeliveryPolicy(
            after_s=min(self.deliver_after_s, self.backlog_s_max),
            after_bytes=min(after_bytes, self.backlog_bytes_max),
            after_batches=min(self.deliver_after_batches, self.backlog_batches_max),
            after_checkpoint=self.deliver_after_checkpoint,
            tries_max=self.delivery_tries_max,
        )

    @property
    def deliver_after_bytes_default(self) -> int:
        return TARGET_FILE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions(DeliveryOptions):
    """What the sinks for lake tables have in common. None: as the table says, else the default."""

    table_properties: Mapping[str, str] = field(default_factory=dict)
    target_file_bytes: int | None = None
    buffer_bytes_max: int = 128 * MIB
    row_group_rows: int | None = None
    max_open_partitions: int = 1000
    compression: str | None = None
    sort_within: tuple[str, ...] = ()
    compact_with: Literal["local", "spark", "none"] = "local"
    maintenance: bool | None = None
    compact_every_s: int = 600
    vacuum_every_s: int = 86_400

    @property
    def maintenance_policy(self) -> MaintenancePolicy:
        return MaintenancePolicy(self.maintenance, self.compact_every_s, self.vacuum_every_s)

    @property
    def deliver_after_bytes_default(self) -> int:
        return self.target_file_bytes or TARGET_FILE_BYTES


def problems_of(values: Mapping[str, Any], given: Mapping[str, str], prefixes: Sequence[Prefix]) -> list[str]:
    """What is wrong with values that are right one by one.

    Args:
        given: see `StreamOptions.given`
        prefixes: of the options in which the sink takes secrets
    """
    problems = []
    secret_options = " or ".join(f"{prefix.name}*" for prefix in prefixes)
    if values.get("store", "").startswith("sqlite") and _is_memory(values["store"]):
        problems.append("store: an in-memory database forgets its manifests; name a file or a Postgres URL.")
    problems += [
        f"{name} has a password, key or signature in its URL. It would be kept in the store and the table, "
        f"and sent to executors: give it as {secret_options}."
        for name, text in given.items()
        if has_credentials(text)
    ]
    return problems


def _is_memory(url: str) -> bool:
    return url in ("sqlite://", "sqlite:///") or ":memory:" in url


_TIB = 1024 * 1024 * MIB
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "uncompressed": "none"}

STREAM_OPTIONS = (
    Option(
        "checkpointLocation",
        "checkpoint_location",
        text,
        "Spark's own option. Must be set on the stream writer: the configuration `spark.sql.streaming."
        "checkpointLocation` is not shown to Python sinks.",
    ),
    Option(
        "store",
        "store",
        text,
        "SQLAlchemy URL of the manifest store. Default: SQLite in the checkpoint directory if that is local.",
        is_secret=True,
    ),
    Option("queryName", "query_name", text, "Spark's own option; shown by `penstock status`."),
    Option(
        "newQuery",
        "new_query",
        one_of({choice.value: choice for choice in NewQuery}),
        "If a query begins with a new checkpoint, and the table holds rows of an earlier query with the same "
        "checkpoint directory or `queryName`: `warn` in the driver's log, `refuse` before anything is "
        "written, or `allow`. Streams only. Default `warn`.",
    ),
    Option("createTable", "create_table", flag, "Create the table if there is none. Default `true`."),
    Option(
        "schemaEvolution",
        "add_columns",
        one_of({"none": False, "addColumns": True}),
        "`addColumns` adds new nullable columns to the table. Default `none`.",
    ),
    Option(
        "maxCommitAttempts",
        "commit_attempts_max",
        count(1, 10_000),
        "Attempts to commit a batch against other writers, over a few minutes, before the query fails. "
        "Default 100.",
    ),
    Option(
        "eventTime",
        "event_time",
        text,
        "A timestamp or date column: `penstock status` and the metrics say how old the oldest row of a "
        "delivery is.",
    ),
    Option(
        "keepDelivered",
        "delivered_max",
        count(1, 10_000_000),
        "Records of delivered or committed batches that the store keeps at most. Default 10,000.",
    ),
    Option(
        "keepDeliveredFor",
        "delivered_s_max",
        duration_s,
        "How long the store keeps records of delivered or committed batches. Default `7d`.",
    ),
)
"""Of `StreamOptions`."""

DELIVERY_OPTIONS = (
    Option(
        "delivery",
        "is_decoupled",
        one_of({"coupled": False, "decoupled": True}),
        "`decoupled`: a batch is done once it is prepared, and `penstock deliver` takes many of them into "
        "the table at once. Streams only. Default `coupled`: every batch is committed to the table.",
    ),
    Option(
        "deliverAfterSeconds",
        "deliver_after_s",
        count(1, 30 * 86_400),
        "Deliver once the oldest batch has waited so long. Default 60.",
    ),
    Option(
        "deliverAfterBytes",
        "deliver_after_bytes",
        size(1, _TIB),
        "Deliver once so much waits. Default: as `targetFileSize`, `128mb` where no files are written.",
    ),
    Option(
        "deliverAfterBatches",
        "deliver_after_batches",
        count(1, 1_000_000),
        "Deliver once so many batches wait. Default 1,000.",
    ),
    Option(
        "deliverAfterCheckpoint",
        "deliver_after_checkpoint",
        flag,
        "Deliver a batch only once Spark's own commits log has it. Default `false`.",
    ),
    Option(
        "deliveryTries",
        "delivery_tries_max",
        count(1, 10_000),
        "Tries of a batch that the table refuses, before it is parked for an operator. Outages do not count. "
        "Default 5.",
    ),
    Option(
        "backlogBatches",
        "backlog_batches_max",
        count(1, 10_000_000),
        "The query waits while so many batches are not delivered. Default 10,000.",
    ),
    Option(
        "backlogBytes",
        "backlog_bytes_max",
        size(1, 1024 * _TIB),
        "The query waits while so much is not delivered. Default `100gb`.",
    ),
    Option(
        "backlogSeconds",
        "backlog_s_max",
        count(1, 365 * 86_400),
        "The query waits while the oldest batch that is not delivered is so old. Default 86,400 (a day).",
    ),
    Option(
        "backlogWaitSeconds",
        "backlog_wait_s",
        count(0, 30 * 86_400),
        "So long the query waits: for its deliveries, and at a restart for a table that does not answer. "
        "Then it fails; a restart goes on where it stopped. Default 600.",
    ),
)
"""Of `DeliveryOptions`."""

FILE_OPTIONS = (
    Option(
        "tableProperties",
        "table_properties",
        properties,
        "Properties of a new table, as a JSON object of strings.",
    ),
    Option(
        "targetFileSize",
        "target_file_bytes",
        size(MIB // 16, 64 * 1024 * MIB),
        "Data files are rolled at about this size. Default `128mb`, or as an Iceberg table says.",
    ),
    Option(
        "bufferSize",
        "buffer_bytes_max",
        size(MIB, 64 * 1024 * MIB),
        "Rows that one task buffers, over all open partitions, in Arrow bytes. Default `128mb`.",
    ),
    Option(
        "rowGroupRows",
        "row_group_rows",
        count(1, 2**31 - 1),
        "Rows in a Parquet row group. Default 250,000, or as an Iceberg table says.",
    ),
    Option(
        "maxOpenPartitions",
        "max_open_partitions",
        count(1, 10_000),
        "Data files that one task keeps open; then the largest are closed. Default 1,000, and at most half "
        "of what the system lets a process open.",
    ),
    Option(
        "compression",
        "compression",
        one_of(_CODECS),
        f"One of {', '.join(_CODECS)}. Default `zstd`, or as an Iceberg table says.",
    ),
    Option("sortWithin", "sort_within", columns, "Sort rows by these columns within each row group."),
    Option(
        "compactWith",
        "compact_with",
        one_of({"local": "local", "spark": "spark", "none": "none"}),
        "Who rewrites small files to `targetFileSize` before they are delivered: the delivery process "
        "(`local`), a Spark job (`spark`), nobody (`none`). Default `local`.",
    ),
    Option(
        "maintenance",
        "maintenance",
        flag,
        "The delivery process keeps the table in shape: visible small files, log checkpoints, removed files, "
        "files that nothing names; `expireSnapshots` has its own option. Default: `true` for tables that "
        "Penstock created, `false` for all others; the table property `penstock.maintenance` switches it "
        "too.",
    ),
    Option(
        "compactEverySeconds",
        "compact_every_s",
        count(0, 365 * 86_400),
        "Between two looks for small files that are visible already; 0 is never. Default 600.",
    ),
    Option(
        "vacuumEverySeconds",
        "vacuum_every_s",
        count(0, 365 * 86_400),
        "Between two removals of files that the table no longer needs, past its retention; 0 is never. "
        "Default 86,400 (a day).",
    ),
)
"""Of `LakeOptions`."""

OPTIONS = (*STREAM_OPTIONS, *DELIVERY_OPTIONS, *FILE_OPTIONS)
"""Of all sinks for lake tables."""


def origins_of(options: StreamOptions) -> tuple[str, ...]:
    """What the query's commits note in the table: its checkpoint directory and, if it has one, its name."""
    checkpoint = normalized_location(options.checkpoint_location or "")
    named = [origin("name", options.query_name)] if options.query_name else []
    return (*([origin("checkpoint", checkpoint)] if checkpoint else []), *named)


def normalized_location(location: str) -> str:
    """One spelling for one directory."""
    local = local_path(location) if location else None
    return posixpath.normpath(local) if local else location.replace("s3a://", "s3://", 1).rstrip("/")
