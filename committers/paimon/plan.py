"""Plans a batch before any task starts: creates the table if needed, and refuses what would lose values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .. import crash_points
from ..contract import Changes, Mode
from ..dry_runs import before_creating
from ..errors import ConfigurationError, ManifestCorruptError, SchemaMismatchError, TableNotSupportedError
from ..file_tables.manifest import LakeManifest
from .features import refuse_unsupported
from .folder import KIND
from .library import in_short, require_library
from .schema import arrow_schema, check_new, check_new_key, nullable, required_values
from .sequences import check_buckets, newest_sequence
from .table import PaimonTable, check_same_table


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query wants."""

    create: bool = True
    partition_by: tuple[str, ...] | None = None
    """None: as the table is."""
    properties: Mapping[str, str] | None = None
    """Of a new table."""
    mode: Mode = "append"
    deletes: bool = False
    """True: rows may delete their key."""


@dataclass(frozen=True, slots=True)
class PaimonLayout:
    """How the files of one batch are written."""

    schema: pa.Schema
    location: str
    """Of the table, on a disk that executors share."""
    table_schema_json: str
    """Paimon's own form of the schema."""
    schema_id: int
    table_id: str
    snapshot_id: int
    """The newest snapshot when the batch was planned; 0 if there was none."""
    newest_sequence: int = -1
    """See `newest_sequence`."""

    def content(self, mode: Mode, origins: tuple[str, ...]) -> LakeManifest:
        return LakeManifest(
            kind=KIND,
            mode=mode,
            table_id=self.table_id,
            table_version=self.snapshot_id,
            schema_json=json.dumps({"schema_id": self.schema_id}),
            new_columns=(),
            partition_by=(),
            files=(),
            origins=origins,
        )


def schema_id_of(content: LakeManifest) -> int:
    """Return the id of the table's schema with which the files of a manifest were written.

    Raises:
        ManifestCorruptError: the manifest has another content.
    """
    try:
        return int(json.loads(content.schema_json)["schema_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestCorruptError(
            f"A manifest has no schema of a Paimon table ({error}). Nothing was committed. Restore the store "
            "from a backup, or use the version of Penstock that prepared the batch."
        ) from error


def plan(
    table: PaimonTable,
    rows: pa.Schema,
    options: PlanOptions,
    batch_id: int,
    check_place: Callable[[], None],
) -> PaimonLayout:
    """Return the layout of the files.

    Args:
        check_place: called before the table is created; raises if there is something else

    Raises:
        ConfigurationError: the table does not exist and must not be created, or is partitioned differently.
        SchemaMismatchError, TableNotSupportedError: name the columns or the features.
        RetryableError: the table cannot be read now.
    """
    require_library()
    from pypaimon.common.json_util import JSON

    if table.table_id() is None:
        check_place()
        _create(table, rows, options)
        crash_points.reach("table.created", batch_id)
    table_id = check_same_table(table, None)
    snapshot_id = table.head().snapshot_id
    loaded = table.load()
    _check_partitions(loaded, table.place, options)
    if isinstance(options.mode, Changes):
        _check_key(loaded, table.place, options.mode, deletes=options.deletes)
    refuse_unsupported(loaded, table.place, options.mode)
    if isinstance(options.mode, Changes):
        check_buckets(table, loaded, snapshot_id)
    newest = newest_sequence(table, loaded, snapshot_id) if loaded.primary_keys else -1
    schema, location = loaded.table_schema, table.location()
    assert location is not None, "it was just loaded"
    return PaimonLayout(
        schema=arrow_schema(loaded),
        location=location,
        table_schema_json=JSON.to_json(schema),
        schema_id=schema.id,
        table_id=table_id,
        snapshot_id=snapshot_id,
        newest_sequence=newest,
    )


def _check_partitions(table: Any, path: str, options: PlanOptions) -> None:
    asked, has = options.partition_by, list(table.partition_keys)
    if asked is not None and [one.lower() for one in asked] != [one.lower() for one in has]:
        raise ConfigurationError(
            f"partitionBy asks for {', '.join(asked)}, but the Paimon table {path} has "
            f"{', '.join(has) or 'none'}. Omit the option to use the table as it is, or write another table."
        )


def _check_key(table: Any, path: str, changes: Changes, *, deletes: bool) -> None:
    """
    Args:
        deletes: rows may delete their key

    Raises:
        ConfigurationError: the table has another primary key.
        TableNotSupportedError: a column needs a value, also in rows that delete.
    """
    keys = [one.lower() for one in table.primary_keys]
    if keys and sorted(keys) != sorted(one.lower() for one in changes.keys):
        raise ConfigurationError(
            f"keys asks for {', '.join(changes.keys)}, but the primary key of the Paimon table {path} is "
            f"{', '.join(table.primary_keys)}, and by it its readers replace rows. Nothing was written. Give "
            f"keys={', '.join(table.primary_keys)}, or write another table."
        )
    known = {one.lower() for one in changes.order_by} if changes.late_rows == "ignore" else set()
    names = [name for name in required_values(table) if name.lower() not in known]
    if deletes and keys and names:
        raise TableNotSupportedError(
            f"The Paimon table {path} has NOT NULL in {', '.join(names)}, and a row that deletes its key has "
            "no value there. Nothing was written. Make the columns nullable, for example with ALTER TABLE "
            "in Spark or Flink, or leave deleteWhen out."
        )


def _create(table: PaimonTable, rows: pa.Schema, options: PlanOptions) -> None:
    """Create the table. If another process was faster, its table is used."""
    from pypaimon import Schema

    if not options.create:
        raise ConfigurationError(
            f"There is no Paimon table at {table.place}, and createTable=false. Create the table, correct "
            "the path, or set createTable=true."
        )
    columns = pa.schema([nullable(field) for field in rows])
    by_lower = {name.lower(): name for name in columns.names}
    partition_by = [by_lower.get(name.lower(), name) for name in options.partition_by or ()]
    check_new(columns, partition_by)
    properties, keys = dict(options.properties or {}), list[str]()
    if isinstance(options.mode, Changes):
        keys = [by_lower.get(name.lower(), name) for name in options.mode.keys]
        check_new_key(keys, partition_by, table.place)
        properties = {**_of_new_key(options.mode, by_lower), **properties}
    try:
        schema = Schema.from_pyarrow_schema(columns, partition_by, keys, properties)
        before_creating(f"Paimon table {table.place}")
        table.create(schema)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise SchemaMismatchError(
            f"The Paimon table {table.place} cannot be created: {in_short(error)}. Fix the columns of the "
            "query or tableProperties."
        ) from error


def _of_new_key(changes: Changes, by_lower: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table with a primary key, as far as the query does not set them."""
    if changes.late_rows != "ignore":
        return {"bucket": "1"}
    order = [by_lower.get(name.lower(), name) for name in changes.order_by]
    return {"bucket": "1", "sequence.field": ",".join(order)}
