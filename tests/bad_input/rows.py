"""Rows of a schema: as Spark hands them over, and as readers have to find them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.types import DataType, StructField, StructType
from tests.bad_input.kinds import as_read, values
from tests.bad_input.values import arrow_array, types_of

from penstock.datasource.spark.types import arrow_schema

ZONES = ("UTC", "Etc/UTC", "America/New_York", "+05:30", "Asia/Kathmandu")


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@dataclass(frozen=True)
class Rows:
    """Columns by position."""

    schema: StructType
    columns: Sequence[Sequence[Any]]
    zone: str = "UTC"
    """The session's time zone: the type in which timestamps are handed over."""
    is_large: bool = False
    """Spark's `spark.sql.execution.arrow.useLargeVarTypes`."""
    cut: int = 0
    """The rows come in two batches: slices of one, the second from this row on."""

    def batches(self) -> list[pa.RecordBatch]:
        arrow = arrow_schema(self.schema)
        arrays = [
            arrow_array(column, self._handed_over(field.type))
            for column, field in zip(self.columns, arrow, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=arrow.names)
        return [batch.slice(0, self.cut), batch.slice(self.cut)]

    def _handed_over(self, kind: pa.DataType) -> pa.DataType:
        """The type in which Spark hands over the values of a type."""
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(self._handed_over(field.type)) for field in kind])
        if pa.types.is_map(kind):
            fields = (kind.key_field, kind.item_field)
            return pa.map_(*(field.with_type(self._handed_over(field.type)) for field in fields))
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(self._handed_over(kind.value_type)))
        if pa.types.is_timestamp(kind) and kind.tz:
            return pa.timestamp("us", self.zone)
        if self.is_large and pa.types.is_string(kind):
            return pa.large_string()
        if self.is_large and pa.types.is_binary(kind):
            return pa.large_binary()
        return kind

    def as_read(self) -> Counter[tuple[Any, ...]]:
        """The rows as `values.rows_of` returns them from a table."""
        by_name = sorted(zip(self.schema.fields, self.columns, strict=True), key=lambda pair: pair[0].name)
        columns = [[as_read(value, field.dataType) for value in column] for field, column in by_name]
        return Counter(zip(*columns, strict=True))

    def types(self, kind: str) -> list[tuple[str, Any]]:
        """The types as `values.types_of` returns them from a table of this format."""
        types = types_of(arrow_schema(self.schema))
        return types if kind == "delta" else [(name, _widened(type_)) for name, type_ in types]


def _widened(kind: Any) -> Any:
    """Iceberg has no integers of 8 and 16 bits."""
    if isinstance(kind, tuple):
        return tuple(_widened(part) for part in kind)
    return "int32" if kind in ("int8", "int16") else kind


@st.composite
def rows_of_schema(draw: st.DrawFn, schema: StructType, rows_max: int = 5) -> Rows:
    count = draw(st.integers(1, rows_max))
    columns = [
        draw(st.lists(values(field.dataType, nullable=field.nullable), min_size=count, max_size=count))
        for field in schema.fields
    ]
    return Rows(
        schema,
        columns,
        zone=draw(st.sampled_from(ZONES)),
        is_large=draw(st.booleans()),
        cut=draw(st.integers(0, count)),
    )
