"""Partitions of Delta tables: allowed partition columns, splitting of rows, string form of values.

Values follow the Delta protocol ("Partition Value Serialization"), directories follow Hive and Spark.
Directories repeat the values, and some readers (polars) use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import null_scalar, string_array
from ...committers.errors import SchemaMismatchError
from ...committers.file_tables.folder_columns import folder_value_problem
from ..parquet.partition_check import bad_partition_value
from ..parquet.splitting import split_by
from ..parquet.table_format import PartitionSlice, PartitionValues

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

DIRECTORY_NAME_BYTES_MAX = 255
"""Limit of file systems."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Reject partition columns whose values cannot be represented as text. Runs on the driver.

    Raises:
        SchemaMismatchError: lists every such column with a remedy.
    """
    problems = [problem for name in partition_by for problem in _column_problems(schema, name)]
    if len(set(partition_by)) != len(partition_by):
        problems.append("A column is listed twice.")
    if not set(schema.names) - set(partition_by):
        problems.append("At least one column must not be a partition column.")
    if problems:
        raise SchemaMismatchError(
            f"Cannot partition by {', '.join(partition_by)}. {' '.join(problems)} Fix partitionBy."
        )


def _column_problems(schema: pa.Schema, name: str) -> Iterator[str]:
    if name not in schema.names:
        yield f"There is no column '{name}'; columns: {', '.join(schema.names)}."
        return
    data_type = schema.field(name).type
    if _is_too_long(directory(((name, None),))):
        yield (
            f"The name of '{name}' is too long for a directory ({DIRECTORY_NAME_BYTES_MAX} bytes, escaped and"
            " with a value). Rename the column."
        )
    if pa.types.is_floating(data_type):
        yield (
            f"'{name}' is {data_type}: NaN, -0.0 and rounding make such values ambiguous as text. Use a "
            f"column such as cast({name} AS DECIMAL(18, 4)) or floor({name})."
        )
    elif pa.types.is_binary(data_type):
        yield f"'{name}' is binary, which engines represent differently. Use a column such as hex({name})."
    elif pa.types.is_nested(data_type):
        yield f"'{name}' is {data_type}. Use one of its fields as a separate column."


def split(rows: pa.Table, partition_by: Sequence[str], where: str) -> Iterator[PartitionSlice]:
    """Split the rows by table partition, without the partition columns, keeping the order within each.

    Raises:
        SchemaMismatchError: a partition value cannot be represented, or is '' in a NOT NULL column.
    """
    keys = [_empty_as_null(rows.column(name).combine_chunks()) for name in partition_by]
    _check_required(rows.schema, partition_by, keys, where)
    for row, own in split_by(keys, rows.drop_columns(list(partition_by))):
        yield PartitionSlice(format_values(partition_by, keys, row, where), own)


def _empty_as_null(column: pa.Array) -> pa.Array:
    """Replace empty strings by NULL: the Delta protocol represents both as ''."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, string_array([""])[0]), null_scalar(column.type), column)


def _check_required(schema: pa.Schema, names: Sequence[str], keys: Sequence[pa.Array], where: str) -> None:
    empty = [
        name
        for name, key in zip(names, keys, strict=True)
        if key.null_count and not schema.field(name).nullable
    ]
    if empty:
        raise SchemaMismatchError(
            f"Empty string in the partition column {', '.join(empty)} ({where}): it would be stored as "
            "NULL, and the column is NOT NULL. Give these rows another value."
        )


def format_values(names: Sequence[str], keys: Sequence[pa.Array], row: int, where: str) -> PartitionValues:
    return tuple((name, _format_value(name, key, row, where)) for name, key in zip(names, keys, strict=True))


def _format_value(name: str, key: pa.Array, row: int, where: str) -> str | None:
    text = check_folder_value(name, key[row], where)
    if text == NULL_DIRECTORY:
        raise bad_partition_value(name, f"is '{NULL_DIRECTORY}', which readers interpret as NULL", where)
    return text


def check_folder_value(name: str, value: pa.Scalar, where: str) -> str | None:
    """Return the string form of a partition value that is in the name of a folder.

    Raises:
        SchemaMismatchError: it cannot be represented, or the name is too long.
    """
    try:
        text = serialize(value.as_py(), value.type)
    except (ValueError, OverflowError) as error:
        raise bad_partition_value(name, "is outside the years 1 to 9999", where) from error
    if _is_too_long(directory(((name, text),))):
        limit = f"is longer than a directory name can be ({DIRECTORY_NAME_BYTES_MAX} bytes, escaped)"
        raise bad_partition_value(name, limit, where)
    return text


def check_folder_values(values: PartitionValues, where: str) -> None:
    """Check values that readers take from the names of the folders.

    Raises:
        SchemaMismatchError: duckdb would read another value.
    """
    for name, value in values:
        if problem := folder_value_problem(value):
            raise bad_partition_value(name, problem, where)


def _is_too_long(directory_name: str) -> bool:
    return len(directory_name.encode()) > DIRECTORY_NAME_BYTES_MAX


def serialize(value: Any, data_type: pa.DataType) -> str | None:
    """The string form of a partition value in the Delta protocol; None for NULL.

    Timestamps are written in the protocol's ISO form with a Z. The other form has no time zone, and engines
    interpret it in the session's.
    """
    if value is None:
        return None
    if pa.types.is_boolean(data_type):
        return "true" if value else "false"
    if pa.types.is_decimal(data_type):
        return format(value, "f")
    if pa.types.is_timestamp(data_type):
        return _serialize_timestamp(value, utc=data_type.tz is not None)
    if pa.types.is_date(data_type):
        return str(value.isoformat())
    return str(value)


def _serialize_timestamp(value: datetime, *, utc: bool) -> str:
    if utc:
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return value.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")


def directory(values: PartitionValues) -> str:
    """`origin=JFK/month=1`, relative to the table; '' without partition columns."""
    return "/".join(
        f"{_escape(name)}={NULL_DIRECTORY if value is None else _escape(value)}" for name, value in values
    )


def _escape(text: str) -> str:
    """Escape like Spark's ExternalCatalogUtils.escapePathName."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
