"""Changes the schema of a Delta table for a batch, in a commit of its own, right before that of the batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from deltalake import CommitProperties, Field
from deltalake.exceptions import CommitFailedError

from .. import crash_points
from ..contract import Batch
from ..errors import NEXT_TRY, ConfigurationError, RetryableError, TableNotSupportedError
from ..file_tables.manifest import LakeManifest
from .checks import BEYOND_LIBRARY
from .library import in_short
from .log_entry import schema_entry
from .log_files import open_log_files
from .plan import join_names
from .schema import TIMESTAMP_NTZ_FEATURE, has_timestamp_ntz
from .schema_match import WIDENING_PROPERTY, SchemaChanges, changed_fields, fields_of
from .snapshot_cache import TableSnapshot
from .table_state import DeltaTableState

TYPE_WIDENING_FEATURE = "typeWidening"


def change_schema(
    table: TableSnapshot,
    table_uri: str,
    batch: Batch,
    content: LakeManifest,
    changes: SchemaChanges,
    now_ms: Callable[[], int],
) -> bool:
    """Give the table the columns of the files; return False if another writer has committed the next version
    first.

    After a crash, recovery of the batch finds the changes in the table. New columns are NULL everywhere.

    Args:
        table: the version that does not have the changes

    Raises:
        RetryableError: they could not be made; the batch was not committed.
    """
    try:
        if changes.altered or is_beyond_library(table):
            _write_entry(table, content, changes, now_ms())
        else:
            _add_columns(table, content, changes.new_columns)
    except (CommitFailedError, FileExistsError):
        return False
    except Exception as error:
        names = join_names([*changes.new_columns, *changes.altered])
        raise RetryableError(
            f"The columns {names} could not be added or changed in the Delta table {table_uri}: "
            f"{in_short(error)}. The batch was not committed. {NEXT_TRY}"
        ) from error
    crash_points.reach("evolve.done", batch.batch_id)
    return True


def is_beyond_library(table: DeltaTableState) -> bool:
    """Return True if the table has a feature for which the Delta library does not commit to it."""
    return not BEYOND_LIBRARY.isdisjoint(table.protocol().writer_features or ())


def check_library_commits(table: DeltaTableState) -> None:
    """
    Raises:
        TableNotSupportedError: the Delta library cannot give the table deletion vectors.
    """
    if is_beyond_library(table):
        raise TableNotSupportedError(
            f"The Delta table {table.table_uri} cannot get deletion vectors (merge=on-read), because the "
            "Delta library does not commit to a table with its features. Nothing was written. Set "
            "delta.enableDeletionVectors with Delta's own engine, or use merge=on-write."
        )


def check_log_reachable(
    table: TableSnapshot, changes: Collection[str], storage_options: Mapping[str, str]
) -> None:
    """
    Args:
        changes: names of the columns that a batch alters

    Raises:
        ConfigurationError: only the Delta library can write the log, which cannot make these changes.
    """
    is_needed = bool(changes) or is_beyond_library(table)
    if is_needed and open_log_files(table.table_uri, storage_options) is None:
        what = f"change the columns {join_names(list(changes))}" if changes else "commit"
        raise ConfigurationError(
            f"Penstock cannot {what} in the Delta table {table.table_uri}, because it cannot write its log: "
            "it can on a local disk, and on S3 and Azure with a key, a role of the machine or a service "
            "principal in the storage.* options. Nothing was written. See docs/storage.md."
        )


def _add_columns(table: TableSnapshot, content: LakeManifest, names: Collection[str]) -> None:
    new = [Field.from_json(json.dumps(f)) for f in fields_of(content.schema_json) if f["name"] in names]
    table.handle().alter.add_columns(new, commit_properties=CommitProperties(max_commit_retries=0))


def _write_entry(table: TableSnapshot, content: LakeManifest, changes: SchemaChanges, now_ms: int) -> None:
    """The Delta library neither relaxes NOT NULL nor widens types, so the entry is written here."""
    tail = table.tail
    if tail is None:
        raise OSError("the files of the log cannot be reached")
    metadata, written = table.metadata(), fields_of(content.schema_json)
    fields = changed_fields(fields_of(table.schema().to_json()), written, changes)
    features = [TYPE_WIDENING_FEATURE] if changes.retyped else []
    if has_timestamp_ntz(fields):
        features.append(TIMESTAMP_NTZ_FEATURE)
    schema = {"type": "struct", "fields": fields}
    action: dict[str, Any] = {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, ensure_ascii=False),
        "partitionColumns": list(metadata.partition_columns),
        "createdTime": metadata.created_time,
        "configuration": {
            **metadata.configuration,
            **({WIDENING_PROPERTY: "true"} if changes.retyped else {}),
        },
    }
    given = {name: value for name, value in action.items() if value is not None}
    entry = schema_entry(given, _protocol(table, features), [*changes.new_columns, *changes.altered], now_ms)
    tail.files.put(tail.version + 1, entry)


_OF_READER_VERSION = {2: ("columnMapping",)}
_OF_WRITER_VERSION = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Features that a version before the lists of features implies, with those of the versions below it."""


def _protocol(table: TableSnapshot, features: Collection[str]) -> Mapping[str, Any] | None:
    """Return the protocol with more features; None if the table has all of them."""
    now = table.protocol()
    readers, writers = set(now.reader_features or ()), set(now.writer_features or ())
    if set(features) <= readers & writers:
        return None
    if now.min_reader_version < 3:
        readers.update(_implied(_OF_READER_VERSION, now.min_reader_version))
    if now.min_writer_version < 7:
        writers.update(_implied(_OF_WRITER_VERSION, now.min_writer_version))
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*readers, *features}),
        "writerFeatures": sorted({*writers, *readers, *features}),
    }


def _implied(features: Mapping[int, tuple[str, ...]], version: int) -> set[str]:
    return {one for number, some in features.items() if number <= version for one in some}
