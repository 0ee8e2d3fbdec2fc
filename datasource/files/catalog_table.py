"""Compares a query with the table of a catalog that gets its partitions. Runs on the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyarrow import types

from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...committers.file_tables.evolution import Narrowing
from ...committers.files.catalog import normalized, opened
from ...committers.files.catalog_table import CatalogTable
from ...committers.files.partitions import TableName
from .existing_files import with_sizes

_STORED_AS = {
    "parquet": "STORED AS PARQUET",
    "orc": "STORED AS ORC",
    "avro": "STORED AS AVRO",
    "json": "ROW FORMAT SERDE 'org.apache.hive.hcatalog.data.JsonSerDe' STORED AS TEXTFILE",
}
_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
}
_SAME_TYPES = {
    "timestamp with local time zone": "timestamp",
    "timestamp_ntz": "timestamp",
    "timestamp_ltz": "timestamp",
    "integer": "int",
}


def check_table(
    name: TableName,
    properties: Mapping[str, str],
    folder: str,
    rows: pa.Schema,
    partition_by: Sequence[str],
    file_format: str,
    *,
    narrows: Narrowing,
) -> pa.Schema:
    """Return the columns of the files to write.

    Args:
        properties: the options `catalog.*`
        folder: where the query writes
        narrows: integers and decimals may have other sizes; the writer checks each value

    Raises:
        ConfigurationError: the table does not exist, or the catalog cannot be opened as configured.
        SchemaMismatchError: the table is another one: its location, format, partitions or columns.
        RetryableError: the catalog does not answer.
        AccessRefusedError: the catalog denies access.
    """
    with opened(name.catalog, properties) as catalog:
        table = catalog.table(name)
    if table is None:
        statement = _definition(name, folder, rows, partition_by, file_format)
        raise ConfigurationError(
            f"The table {name} does not exist in the catalog {name.catalog!r}. Nothing was written. Create "
            f"it, for example in Spark, Hive or Athena:\n{statement}"
        )
    if narrows:
        stored = {name.lower(): _plain(text) for name, text in table.columns or ()}
        by_name = {name: stored[name.lower()] for name in rows.names if name.lower() in stored}
        rows = with_sizes(rows, by_name, lambda data_type: _plain(_hive_type(data_type)))
    problems = list(_problems(table, folder, rows, partition_by, file_format))
    if problems:
        raise SchemaMismatchError(
            f"The query does not fit the table {name} of the catalog {name.catalog!r}.\n- "
            + "\n- ".join(problems)
        )
    return rows


def _type_of(field: pa.Field) -> str:
    """Return the type of a column in Hive and Glue.

    Raises:
        SchemaMismatchError: they have no such type.
    """
    try:
        return _hive_type(field.type)
    except KeyError:
        raise SchemaMismatchError(
            f"{field.name}: Hive and Glue have no type for {field.type}. Cast the column, or remove "
            "catalogTable."
        ) from None


def _hive_type(data_type: pa.DataType) -> str:
    """Raises KeyError if there is none."""
    if types.is_timestamp(data_type):
        return "timestamp"
    if types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"array<{_hive_type(data_type.value_type)}>"
    if types.is_map(data_type):
        return f"map<{_hive_type(data_type.key_type)},{_hive_type(data_type.item_type)}>"
    if types.is_struct(data_type):
        fields = (f"{field.name}:{_hive_type(field.type)}" for field in data_type)
        return f"struct<{','.join(fields)}>"
    return _TYPES[str(data_type)]


def _definition(
    name: TableName, folder: str, rows: pa.Schema, partition_by: Sequence[str], file_format: str
) -> str:
    """A statement that creates the table."""
    columns = [_column(field) for field in rows if field.name not in partition_by]
    partitions = [_column(rows.field(column)) for column in partition_by]
    location = folder if "://" in folder else f"file://{folder}"
    return (
        f"CREATE EXTERNAL TABLE {name} ({', '.join(columns)}) PARTITIONED BY ({', '.join(partitions)}) "
        f"{_STORED_AS[file_format]} LOCATION '{location}'"
    )


def _column(field: pa.Field) -> str:
    return f"`{field.name}` {_type_of(field)}"


def _problems(
    table: CatalogTable, folder: str, rows: pa.Schema, partition_by: Sequence[str], file_format: str
) -> Iterator[str]:
    if normalized(table.location) != normalized(folder):
        yield f"location: the table is at {table.location}, and the query writes to {folder}."
    if file_format not in table.storage.lower():
        yield f"fileFormat: the table is stored as {table.storage}, and the query writes {file_format}."
    wanted = _types_of(rows.field(name) for name in partition_by)
    stored = [(name.lower(), _plain(text)) for name, text in table.partition_columns]
    if stored != list(wanted.items()):
        yield (
            f"partitionBy: the table is partitioned by {_listed(stored) or 'nothing'}, and the query by "
            f"{_listed(wanted.items())}."
        )
    columns = _types_of(field for field in rows if field.name not in partition_by)
    yield from _column_problems(table, columns, file_format)


def _column_problems(table: CatalogTable, columns: dict[str, str], file_format: str) -> Iterator[str]:
    if table.columns is None:
        return
    stored = {name.lower(): _plain(text) for name, text in table.columns}
    for name, wanted in columns.items():
        if name not in stored:
            change = f"ALTER TABLE {table.name} ADD COLUMNS (`{name}` {wanted})"
            yield f"{name}: the table has no such column. {change}."
        elif file_format != "json" and stored[name] != _plain(wanted):  # JSON has texts for most types
            yield f"{name}: the table has {stored[name]}, and the rows have {wanted}."
    if file_format == "orc" and list(stored)[: len(columns)] != list(columns):
        yield f"columns: readers take those of ORC by position, and the table has {', '.join(stored)}."


def _types_of(fields: Iterable[pa.Field]) -> dict[str, str]:
    return {field.name.lower(): _type_of(field) for field in fields}


def _plain(text: str) -> str:
    """Return a type of Hive in one form."""
    plain = text.lower()
    for spelled, same in _SAME_TYPES.items():
        plain = re.sub(rf"\b{spelled}\b", same, plain)
    return re.sub(r"\s", "", plain)


def _listed(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {text}" for name, text in columns)
