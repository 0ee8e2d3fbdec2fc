"""Converts data files of the writers to Iceberg's metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    UUIDType,
)

from ..contract import DataFile

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


def iceberg_data_files(
    files: Iterable[DataFile], location: str, spec: PartitionSpec, schema: Schema
) -> Iterator[IcebergDataFile]:
    """The files in the form that a snapshot adds.

    Args:
        location: base location of the files' paths
        spec: the partition spec of the files
        schema: the table's schema, for the types of the partition values
    """
    readers = [_reader(field.field_type) for field in spec.partition_type(schema).fields]
    for file in files:
        values = zip(readers, file.partition_values, strict=True)
        partition = Record(*[None if text is None else read(text) for read, (_, text) in values])
        yield _data_file(file, location, spec.spec_id, partition)


def _data_file(file: DataFile, location: str, spec_id: int, partition: Record) -> IcebergDataFile:
    statistics = json.loads(file.statistics)
    metrics: dict[str, Any] = {name: _by_field(statistics[name], int) for name in _COUNTS}
    metrics |= {name: _by_field(statistics[name], bytes.fromhex) for name in _BOUNDS}
    data_file = IcebergDataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        **metrics,
        split_offsets=statistics["split_offsets"],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    data_file.spec_id = spec_id
    return data_file


def partition_strings(
    partition: Record, spec: PartitionSpec, schema: Schema
) -> tuple[tuple[str, str | None], ...]:
    """A file's partition values in the form of `DataFile.partition_values`: the inverse of
    `iceberg_data_files`.
    """
    kinds = spec.partition_type(schema).fields
    return tuple(
        (kind.name, None if value is None else _text(value))
        for kind, value in zip(kinds, (partition[i] for i in range(len(kinds))), strict=True)
    )


def _text(value: Any) -> str:
    """In the writers' string form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, UUID):
        return value.bytes.hex()
    return value.hex() if isinstance(value, bytes) else str(value)


def _by_field(values: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[int, Any]:
    return {int(field_id): read(value) for field_id, value in values.items()}


def _reader(kind: IcebergType) -> Callable[[str], Any]:
    """Returns a function that converts a partition value's string to what Iceberg's Avro writer takes."""
    if isinstance(kind, BooleanType):
        return lambda text: text == "true"
    if isinstance(kind, FloatType | DoubleType):
        return float
    if isinstance(kind, DecimalType):
        return Decimal
    if isinstance(kind, StringType):
        return str
    if isinstance(kind, BinaryType | FixedType | UUIDType):
        return bytes.fromhex
    return int
