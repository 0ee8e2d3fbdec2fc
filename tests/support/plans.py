"""Plans with what is asked for and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.committers.contract import SortField
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.write_config import WriteConfig

OF_THE_FORMAT = ("partition_by", "statistics_columns", "statistics_columns_max")


def delta_plan(
    location: object,
    schema: pa.Schema,
    storage_options: Mapping[str, str] | None = None,
    *,
    sort_within: tuple[str, ...] = (),
    **options: Any,
) -> WriteConfig:
    """Options of the table format and of the plan, by name; `sort_within` ascending, NULLs last."""
    of_format = {name: options.pop(name) for name in OF_THE_FORMAT if name in options}
    sort = tuple([SortField((name,)) for name in sort_within])
    table_format = DeltaFormat(**of_format)
    return WriteConfig(str(location), dict(storage_options or {}), schema, table_format, sort=sort, **options)


def iceberg_plan(location: object, schema: pa.Schema, **options: Any) -> WriteConfig:
    """Of a table without partitions, whose field ids are counted from 1."""
    return WriteConfig(str(location), {}, with_ids(schema), IcebergFormat(), **options)


def with_ids(schema: pa.Schema) -> pa.Schema:
    """With a field id for every field, however deep."""
    ids = itertools.count(1)

    def field(one: pa.Field) -> pa.Field:
        own = {b"PARQUET:field_id": str(next(ids)).encode()}
        return pa.field(one.name, kind(one.type), one.nullable, own)

    def kind(one: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(one):
            return pa.struct([field(child) for child in one])
        if pa.types.is_map(one):
            return pa.map_(field(one.key_field), field(one.item_field))
        return pa.list_(field(one.value_field)) if pa.types.is_list(one) else one

    return pa.schema([field(one) for one in schema])
