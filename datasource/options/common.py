"""Options that every sink for a lake table has. Parsed once, on the driver, into a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .parsing import MIB, Option, columns, count, flag, one_of, properties, size, text

TARGET_FILE_BYTES = 128 * MIB
ROW_GROUP_ROWS = 1_000_000
COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """What the sinks for lake tables have in common. None: as the table says, else the default."""

    checkpoint_location: str | None = None
    store: str | None = field(default=None, repr=False)
    query_name: str = ""
    create_table: bool = True
    table_properties: Mapping[str, str] = field(default_factory=dict)
    add_columns: bool = False
    target_file_bytes: int | None = None
    buffer_bytes_max: int = 64 * MIB
    row_group_rows: int | None = None
    max_open_partitions: int = 100
    compression: str | None = None
    sort_within: tuple[str, ...] = ()
    commit_attempts_max: int = 20


def problems_of(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with values that are right one by one."""
    if values.get("store", "").startswith("sqlite") and _is_memory(values["store"]):
        return ["store: an in-memory database forgets its manifests; name a file or a Postgres URL."]
    return []


def _is_memory(url: str) -> bool:
    return url in ("sqlite://", "sqlite:///") or ":memory:" in url


_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4", "uncompressed": "none"}

OPTIONS = (
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
    ),
    Option("queryName", "query_name", text, "Spark's own option; shown by `penstock status`."),
    Option("createTable", "create_table", flag, "Create the table if there is none. Default `true`."),
    Option(
        "tableProperties",
        "table_properties",
        properties,
        "Properties of a new table, as a JSON object of strings.",
    ),
    Option(
        "schemaEvolution",
        "add_columns",
        one_of({"none": False, "addColumns": True}),
        "`addColumns` adds new nullable columns to the table. Default `none`.",
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
        "Rows that one task buffers, over all open partitions, in Arrow bytes. Default `64mb`.",
    ),
    Option(
        "rowGroupRows",
        "row_group_rows",
        count(1, 2**31 - 1),
        "Rows in a Parquet row group. Default 1,000,000, or as an Iceberg table says.",
    ),
    Option(
        "maxOpenPartitions",
        "max_open_partitions",
        count(1, 10_000),
        "Data files that one task keeps open; the least recently used is closed. Default 100.",
    ),
    Option(
        "compression",
        "compression",
        one_of(_CODECS),
        f"One of {', '.join(_CODECS)}. Default `zstd`, or as an Iceberg table says.",
    ),
    Option("sortWithin", "sort_within", columns, "Sort rows by these columns within each row group."),
    Option(
        "maxCommitAttempts",
        "commit_attempts_max",
        count(1, 10_000),
        "Attempts to commit a batch against other writers before the query fails. Default 20.",
    ),
)
