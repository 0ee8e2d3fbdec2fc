"""Opens the Delta table for a batch, or creates it. Runs on the driver, before any task starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema

from .. import crash_points
from ..dry_runs import before_creating
from ..error_causes import ErrorCause, cause_of, retryable
from ..errors import NEXT_TRY, ConfigurationError
from .library import in_short
from .maintenance import MAINTENANCE_PROPERTY
from .schema import check_reserved, check_timestamps_in_maps
from .table import load_if_there
from .table_state import DeltaTableState

DEFAULT_PROPERTIES: Mapping[str, str] = {
    "delta.checkpointInterval": "20",
    "delta.checkpoint.writeStatsAsStruct": "true",
    MAINTENANCE_PROPERTY: "true",
}
"""Default properties of new tables. The last one marks tables created by Penstock. Typed statistics in
checkpoints halve the time to load a table; JSON statistics are kept for readers that need them.
"""

_HARMLESS_PROPERTIES = (
    "delta.appendOnly",
    "delta.autoOptimize.",
    "delta.checkpoint.",
    "delta.checkpointInterval",
    "delta.checkpointRetentionDuration",
    "delta.dataSkippingNumIndexedCols",
    "delta.dataSkippingStatsColumns",
    "delta.deletedFileRetentionDuration",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableExpiredLogCleanup",
    "delta.isolationLevel",
    "delta.logRetentionDuration",
    "delta.parquet.compression.codec",
    "delta.randomizeFilePrefixes",
    "delta.randomPrefixLength",
    "delta.sampleRetentionDuration",
    "delta.setTransactionRetentionDuration",
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
)
"""The `delta.` properties, and prefixes that end with a dot, that a new table may have. The Delta library
writes any other property without the table feature that it needs, and engines reject or misread such a table.
"""


@dataclass(frozen=True, slots=True)
class NewDeltaTable:
    """How to create a table that does not exist yet."""

    allowed: bool
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def create_table(
    table_uri: str,
    storage_options: Mapping[str, str],
    fields: Sequence[Mapping[str, Any]],
    new: NewDeltaTable,
    batch_id: int,
) -> bool:
    """Create a table that did not exist just before; return False if another process has created it in the
    meantime.

    Raises:
        ConfigurationError: creation is disabled, or is not possible with these options.
    """
    if not new.allowed:
        raise ConfigurationError(
            f"There is no Delta table at {table_uri}, and createTable=false. Create the table, correct the "
            "path, or set createTable=true."
        )
    created = _create(table_uri, storage_options, fields, new)
    crash_points.reach("table.created", batch_id)
    return created


def _create(
    table_uri: str,
    storage_options: Mapping[str, str],
    fields: Sequence[Mapping[str, Any]],
    new: NewDeltaTable,
) -> bool:
    """Return False if another process has created the table in the meantime; then that table is used.

    The library's usual retries are disabled: with them, a second "create" would be committed on top of the
    first table and give it another id.
    """
    _check_properties(table_uri, new.properties)
    check_timestamps_in_maps(fields, table_uri)
    check_reserved([str(column["name"]) for column in fields], new.properties, table_uri)
    partition_by = _partition_columns(table_uri, fields, new.partition_by)
    before_creating(f"Delta table {table_uri}")
    try:
        DeltaTable.create(
            table_uri,
            Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)})),
            mode="error",
            partition_by=partition_by,
            configuration={**DEFAULT_PROPERTIES, **new.properties},
            storage_options=dict(storage_options),
            commit_properties=CommitProperties(max_commit_retries=0),
            raise_if_key_not_exists=False,
        )
    except Exception as error:
        if load_if_there(table_uri, storage_options) is not None:
            return False
        if cause_of(error) is not ErrorCause.UNKNOWN:
            raise retryable(error)(
                f"The Delta table {table_uri} cannot be created: {in_short(error)}. Check the path, the "
                f"storage.* options and that the storage is reachable. {NEXT_TRY}"
            ) from error
        raise ConfigurationError(
            f"The Delta table {table_uri} cannot be created: {in_short(error)}. Fix the path, the storage.* "
            "options, the column names or the table properties."
        ) from error
    return True


_FLAG = r"(?i)true|false", "true or false"
_INTERVAL = (
    r"(?i)interval( \d{1,9} (micro|milli)?seconds?| \d{1,9} (minute|hour|day|week)s?)+",
    "an interval such as 'interval 7 days'",
)
_COUNT = r"[1-9]\d{0,8}", "a whole number of at least 1"
_VALUES: Mapping[str, tuple[str, str]] = {
    "delta.appendOnly": _FLAG,
    "delta.checkpoint.writeStatsAsJson": _FLAG,
    "delta.checkpoint.writeStatsAsStruct": _FLAG,
    "delta.checkpointInterval": _COUNT,
    "delta.checkpointRetentionDuration": _INTERVAL,
    "delta.dataSkippingNumIndexedCols": (r"-1|\d{1,9}", "a whole number of at least -1"),
    "delta.deletedFileRetentionDuration": _INTERVAL,
    "delta.enableChangeDataFeed": _FLAG,
    "delta.enableDeletionVectors": _FLAG,
    "delta.enableExpiredLogCleanup": _FLAG,
    "delta.logRetentionDuration": _INTERVAL,
    "delta.randomPrefixLength": _COUNT,
    "delta.randomizeFilePrefixes": _FLAG,
    "delta.sampleRetentionDuration": _INTERVAL,
    "delta.setTransactionRetentionDuration": _INTERVAL,
}
"""Patterns of values that all engines can read, and their descriptions. The Delta library writes any
value.
"""


def _check_values(table_uri: str, properties: Mapping[str, str]) -> None:
    wrong = [
        f"{name} = {properties[name]!r} must be {words}"
        for name, (pattern, words) in _VALUES.items()
        if name in properties and not re.fullmatch(pattern, properties[name])
    ]
    if wrong:
        raise ConfigurationError(
            f"The Delta table {table_uri} cannot be created with these properties: {'; '.join(wrong)}. Fix "
            "the option tableProperties."
        )


def _is_harmless(name: str) -> bool:
    return any(
        name == known or (known[-1] == "." and name.startswith(known)) for known in _HARMLESS_PROPERTIES
    )


def _check_properties(table_uri: str, properties: Mapping[str, str]) -> None:
    _check_values(table_uri, properties)
    refused = [name for name in properties if name.startswith("delta.") and not _is_harmless(name)]
    if refused:
        raise ConfigurationError(
            f"The Delta table {table_uri} cannot be created with the table properties "
            f"{join_names(refused)}: they need a table feature that Penstock cannot set up or would "
            "violate. Fix the option tableProperties."
        )


def _partition_columns(
    table_uri: str, fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str]
) -> list[str]:
    """The partition columns with the case of the query's columns."""
    columns = {str(column["name"]).lower(): column for column in fields}
    unknown = [name for name in partition_by if name.lower() not in columns]
    nested = [name for name in partition_by if name not in unknown and _is_nested(columns[name.lower()])]
    if unknown or nested:
        raise ConfigurationError(
            f"The Delta table {table_uri} cannot be partitioned by {join_names([*unknown, *nested])}. The "
            f"query has the columns {join_names([str(column['name']) for column in fields])}. Struct, "
            "array, map and binary columns cannot be partition columns."
        )
    if partition_by and len({name.lower() for name in partition_by}) == len(columns):
        raise ConfigurationError(
            f"partitionBy lists every column of the query, so files of {table_uri} would have no columns. "
            "Leave out at least one."
        )
    return [str(columns[name.lower()]["name"]) for name in partition_by]


def _is_nested(column: Mapping[str, Any]) -> bool:
    return isinstance(column["type"], dict) or column["type"] == "binary"


def check_partitioning(table: DeltaTableState, partition_by: Sequence[str] | None) -> None:
    """
    Raises:
        ConfigurationError: the table's partitioning differs. None accepts any partitioning.
    """
    has = table.metadata().partition_columns
    if partition_by is None or [name.lower() for name in has] == [name.lower() for name in partition_by]:
        return
    raise ConfigurationError(
        f"partitionBy asks for {join_names(partition_by)}, but the Delta table {table.table_uri} is "
        f"partitioned by {join_names(has)}. Omit partitionBy to use the table's partitioning, or write "
        "another table."
    )


def join_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "no column"
