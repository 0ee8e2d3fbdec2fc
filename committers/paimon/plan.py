"""Plans a batch before any task starts: creates the table if needed, and refuses what would lose values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .. import crash_points
from ..contract import Mode
from ..errors import ConfigurationError, ManifestCorruptError, SchemaMismatchError
from ..file_tables.manifest import LakeManifest
from .features import refuse_unsupported
from .folder import KIND
from .library import in_short, require_library
from .schema import arrow_schema, check_new, nullable
from .table import PaimonTable, check_same_table


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query wants."""

    create: bool = True
    partition_by: tuple[str, ...] | None = None
    """None: as the table is."""
    properties: Mapping[str, str] | None = None
    """Of a new table."""


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
    refuse_unsupported(loaded, table.place)
    _check_partitions(loaded, table.place, options)
    schema, location = loaded.table_schema, table.location()
    assert location is not None, "it was just loaded"
    return PaimonLayout(
        schema=arrow_schema(loaded),
        location=location,
        table_schema_json=JSON.to_json(schema),
        schema_id=schema.id,
        table_id=table_id,
        snapshot_id=snapshot_id,
    )


def _check_partitions(table: Any, path: str, options: PlanOptions) -> None:
    asked, has = options.partition_by, list(table.partition_keys)
    if asked is not None and [one.lower() for one in asked] != [one.lower() for one in has]:
        raise ConfigurationError(
            f"partitionBy asks for {', '.join(asked)}, but the Paimon table {path} has "
            f"{', '.join(has) or 'none'}. Omit the option to use the table as it is, or write another table."
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
    properties = dict(options.properties or {})
    try:
        schema = Schema.from_pyarrow_schema(columns, partition_keys=partition_by, options=properties)
        table.create(schema)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise SchemaMismatchError(
            f"The Paimon table {table.place} cannot be created: {in_short(error)}. Fix the columns of the "
            "query or tableProperties."
        ) from error
