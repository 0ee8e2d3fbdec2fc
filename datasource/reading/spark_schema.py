"""The columns that are read, as Spark has them."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...committers.errors import ConfigurationError
from ...readers.table import TableScan


def spark_schema(table: TableScan) -> StructType:
    fields = table.reader.spark_fields(table.columns)
    schema: StructType = StructType.fromJson({"type": "struct", "fields": list(fields)})
    return schema


def check_schema(table: TableScan, schema: StructType) -> None:
    """
    Args:
        schema: what Spark wants

    Raises:
        ConfigurationError: the table has other columns.
    """
    own = spark_schema(table)
    if _types(own) != _types(schema):
        raise ConfigurationError(
            f"{table.reader.name} has the columns {own.simpleString()}, and Spark wants "
            f"{schema.simpleString()}. If the table was changed in the meantime, read it again. Give no "
            "schema, or columns of the table with their types. Nothing was read."
        )


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the types that Spark expects of the rows: batches of others are refused."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # Spark 4.0: in UTC
