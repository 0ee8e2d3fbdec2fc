"""Plans the table layout for a batch from an Iceberg table's metadata. Runs on the driver, before any task
starts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.types import FloatType, IcebergType, NestedField, StructType

from ..contract import PartitionField, SortField
from ..errors import ConfigurationError
from ..file_tables.evolution import NO_EVOLUTION, Evolution, Narrowing
from ..file_tables.manifest import LakeManifest
from .arrow import arrow_schema
from .catalog import io_properties
from .file_schema_check import check_files_fit
from .schema import IcebergMatch, fields_of, match, paths_of
from .target import NO_SNAPSHOT, IcebergTableLayout, ParquetSettings


def plan_target(
    table: Table,
    source: pa.Schema,
    branch: str,
    *,
    created: bool,
    evolution: Evolution = NO_EVOLUTION,
    narrows: Narrowing = Narrowing.NONE,
) -> IcebergTableLayout:
    """Return the layout for a batch with these columns.

    Args:
        evolution, narrows: see `match`

    Raises:
        SchemaMismatchError: shows both schemas.
        ConfigurationError: a property of the table has an unsupported value.
    """
    metadata = table.metadata
    name = ".".join(table.name())
    matched = match(
        source,
        table.schema(),
        metadata.last_column_id,
        evolution=evolution,
        table_name=name,
        narrows=narrows,
        kept_types=_floats_in_partitions(table),
    )
    head = metadata.snapshot_by_name(branch)
    return _target(
        table,
        matched,
        table_version=NO_SNAPSHOT if head is None else head.snapshot_id,
        location=data_location(table),
        created=created,
    )


def target_of_files(table: Table, content: LakeManifest) -> IcebergTableLayout:
    """Return the current layout for more files with the same schema.

    Raises:
        SchemaMismatchError: the table was altered since, and no longer accepts these files.
        ConfigurationError: a property of the table has an unsupported value.
    """
    check_files_fit(table.metadata, content)
    return _target(
        table,
        IcebergMatch(
            Schema.model_validate_json(content.schema_json),
            content.new_columns,
            content.altered,
            content.renames,
        ),
        table_version=content.table_version,
        location=content.location,
        created=False,
    )


def _target(
    table: Table,
    matched: IcebergMatch,
    *,
    table_version: int,
    location: str,
    created: bool,
) -> IcebergTableLayout:
    """
    Args:
        matched: has the schema of the files; columns of the table may have been renamed since, but keep
            their field ids
    """
    metadata, schema = table.metadata, matched.schema
    properties = metadata.properties
    is_object_storage = properties.get("write.object-storage.enabled", "false").lower() == "true"
    is_partitioned_there = properties.get("write.object-storage.partitioned-paths", "true").lower() == "true"
    return IcebergTableLayout(
        table_id=str(metadata.table_uuid),
        table_version=table_version,
        schema=arrow_schema(schema),
        schema_json=schema.model_dump_json(),
        new_columns=matched.new_columns,
        altered=matched.altered,
        renames=matched.renames,
        partition_spec_id=metadata.default_spec_id,
        partitioning=partitioning(table.spec(), schema),
        sort_order=sort_order(table.sort_order(), schema),
        metrics=metrics_modes(schema, table.sort_order(), properties),
        parquet=parquet_settings(properties, schema),
        data_location=location,
        is_object_storage_layout=is_object_storage,
        has_partition_paths=is_partitioned_there or not is_object_storage,
        io_properties=io_properties(table),
        created=created,
    )


def _floats_in_partitions(table: Table) -> set[int]:
    """Field ids of floating columns by which some spec partitions: as doubles, pyiceberg would read their
    values wrong from manifests that have floats.
    """
    schema = table.schema()
    sources = {part.source_id for spec in table.specs().values() for part in spec.fields}
    known = paths_of(schema).keys()
    return {one for one in sources & known if isinstance(schema.find_field(one).field_type, FloatType)}


def data_location(table: Table) -> str:
    """Location of the table's data files, in the form of its metadata."""
    return table.location_provider().data_path


def partitioning(spec: PartitionSpec, schema: Schema) -> tuple[PartitionField, ...]:
    """All fields of the spec including void ones, because every file's partition has them.

    A void field has no column if its column was dropped.
    """
    paths = paths_of(schema)
    return tuple(
        PartitionField(part.name, paths.get(part.source_id, ()), str(part.transform)) for part in spec.fields
    )


def sort_order(order: SortOrder, schema: Schema) -> tuple[SortField, ...]:
    """The supported prefix of the sort order: rows sorted by its first fields are always valid."""
    paths, fields = paths_of(schema), []
    for part in order.fields:
        if part.source_id not in paths:
            break
        is_descending = part.direction == SortDirection.DESC
        nulls_first = part.null_order == NullOrder.NULLS_FIRST
        fields.append(SortField(paths[part.source_id], str(part.transform), is_descending, nulls_first))
    return tuple(fields)


# Column metrics -----------------------------------------------------------------------------------

METRICS_DEFAULT = "truncate(16)"
INFERRED_COLUMNS_MAX = 100
"""Number of leaf columns with metrics, if the table does not set it."""

_METRICS = "write.metadata.metrics."
_METRICS_COLUMN = f"{_METRICS}column."


def metrics_modes(schema: Schema, order: SortOrder, properties: Mapping[str, str]) -> dict[int, str]:
    """The metrics mode of every leaf column by field id, following Iceberg's `MetricsConfig`.

    A column's own property has priority. Sort columns have at least bounds. Then the table's default applies.
    Without one, the first 100 leaf columns have the default mode, those closest to the top level first. Leaf
    columns inside lists and maps have at most counts: bounds of elements are not bounds of rows.

    Raises:
        ConfigurationError: names the property that cannot be parsed.
    """
    leaves = dict(_leaves(schema.as_struct(), is_repeated=False))
    default = properties.get(f"{_METRICS}default")
    if default is not None:
        modes = dict.fromkeys(leaves, _mode(f"{_METRICS}default", default))
    else:
        limit = _whole_number(properties, f"{_METRICS}max-inferred-column-defaults", at_least=0)
        first = _first_leaves(schema, INFERRED_COLUMNS_MAX if limit is None else limit)
        modes = {field_id: METRICS_DEFAULT if field_id in first else "none" for field_id in leaves}
    sorted_columns = {part.source_id for part in order.fields if part.transform.preserves_order}
    for field_id in sorted_columns & modes.keys():
        if modes[field_id] in ("none", "counts"):
            modes[field_id] = METRICS_DEFAULT
    modes.update(_column_modes(schema, leaves, properties))
    return {
        field_id: "counts" if leaves[field_id] and mode != "none" else mode
        for field_id, mode in modes.items()
    }


def _leaves(data_type: IcebergType, *, is_repeated: bool) -> Iterator[tuple[int, bool]]:
    """(field id, is it inside a list or a map?) of every leaf column."""
    is_repeated = is_repeated or not isinstance(data_type, StructType)
    for inner in fields_of(data_type):
        if inner.field_type.is_primitive:
            yield inner.field_id, is_repeated
        else:
            yield from _leaves(inner.field_type, is_repeated=is_repeated)


def _first_leaves(schema: Schema, limit: int) -> Collection[int]:
    """Breadth-first per struct: its leaf columns come before those of nested structs, lists and maps."""
    found: list[int] = []

    def visit(fields: Collection[NestedField]) -> None:
        found.extend(inner.field_id for inner in fields if inner.field_type.is_primitive)
        for inner in fields:
            if len(found) < limit:
                visit(fields_of(inner.field_type))

    visit(schema.fields)
    return set(found[:limit])


def _column_modes(
    schema: Schema, leaves: Collection[int], properties: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    for key, text in properties.items():
        if key.startswith(_METRICS_COLUMN):
            field_id = _field_id(schema, key.removeprefix(_METRICS_COLUMN))
            if field_id in leaves:
                yield field_id, _mode(key, text)


def _field_id(schema: Schema, name: str) -> int:
    """-1 for a column that does not exist: properties are not removed with their columns."""
    try:
        return schema.find_field(name).field_id
    except ValueError:
        return -1


def _mode(key: str, text: str) -> str:
    mode = text.strip().lower()
    truncated = re.fullmatch(r"truncate\((\d+)\)", mode)
    if mode in ("none", "counts", "full") or (truncated and int(truncated[1]) > 0):
        return mode
    raise _bad(key, text, "none, counts, truncate(16) or full")


# Parquet ------------------------------------------------------------------------------------------

_COMPRESSIONS = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "uncompressed": "none",
    "none": "none",
}
"""Iceberg's codec names and the writers'."""

_LEVELS = {"gzip": (1, 9), "zstd": (1, 22)}
"""Codecs with levels."""

_BLOOM_COLUMN = "write.parquet.bloom-filter-enabled.column."


def parquet_settings(properties: Mapping[str, str], schema: Schema) -> ParquetSettings:
    """The table's write properties for Parquet files.

    Raises:
        ConfigurationError: names the property that cannot be parsed or is not supported.
    """
    compression = _compression(properties)
    return ParquetSettings(
        target_file_bytes=_whole_number(properties, "write.target-file-size-bytes"),
        row_group_bytes=_whole_number(properties, "write.parquet.row-group-size-bytes"),
        row_group_rows=_whole_number(properties, "write.parquet.row-group-limit"),
        page_bytes=_whole_number(properties, "write.parquet.page-size-bytes"),
        page_rows=_whole_number(properties, "write.parquet.page-row-limit"),
        dictionary_bytes=_whole_number(properties, "write.parquet.dict-size-bytes"),
        compression=compression,
        compression_level=_compression_level(properties, compression),
        bloom_columns=_bloom_columns(properties, schema),
    )


def _whole_number(properties: Mapping[str, str], key: str, at_least: int = 1) -> int | None:
    text = properties.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) < at_least:
        raise _bad(key, text, f"a whole number of at least {at_least}")
    return int(text)


def _compression(properties: Mapping[str, str]) -> str | None:
    key = "write.parquet.compression-codec"
    text = properties.get(key)
    if text is None:
        return None
    if text.strip().lower() not in _COMPRESSIONS:
        raise _bad(key, text, "zstd, snappy, gzip, lz4 or uncompressed")
    return _COMPRESSIONS[text.strip().lower()]


def _compression_level(properties: Mapping[str, str], compression: str | None) -> int | None:
    """Ignored if the codec has no levels, as in Iceberg's own writers."""
    key = "write.parquet.compression-level"
    text = properties.get(key)
    if text is None or text.strip().lower() == "null":
        return None
    codec = compression or "zstd"
    if codec not in _LEVELS:
        return None
    low, high = _LEVELS[codec]
    if not re.fullmatch(r"\d{1,3}", text.strip()) or not low <= int(text) <= high:
        raise _bad(key, text, f"a {codec} level from {low} to {high}")
    return int(text)


def _bloom_columns(properties: Mapping[str, str], schema: Schema) -> tuple[tuple[str, ...], ...]:
    paths, wanted = paths_of(schema), []
    for key, text in sorted(properties.items()):
        if key.startswith(_BLOOM_COLUMN):
            if text.strip().lower() not in ("true", "false"):
                raise _bad(key, text, "true or false")
            field_id = _field_id(schema, key.removeprefix(_BLOOM_COLUMN))
            if text.strip().lower() == "true" and field_id in paths:
                wanted.append(paths[field_id])
    return tuple(wanted)


def _bad(key: str, text: str, known: str) -> ConfigurationError:
    return ConfigurationError(
        f"The property {key} of the Iceberg table has the unsupported value {text!r}. Set it to {known}, or "
        f"remove it: ALTER TABLE ... UNSET TBLPROPERTIES ('{key}')."
    )
