"""Any value of any type is read back by another engine, bit by bit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from tests.bad_input.kinds import as_read, types, values, with_nulls
from tests.bad_input.rows import Rows, rows_of_schema, schema_of
from tests.bad_input.tables import (
    by_duckdb,
    check_read,
    check_refused,
    columns_without_feature,
    examples,
    new_table,
    write,
)
from tests.bad_input.values import Hidden, arrow_array, rows_of, values_of
from tests.support.lakes import LAKES

from penstock.committers.errors import SchemaMismatchError
from penstock.datasource.spark.types import arrow_schema
from penstock.writers.parquet.schema_projection import SchemaProjector

pytestmark = [
    pytest.mark.parametrize("kind", LAKES),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),  # of types, six levels deep
]


SCHEMAS_WITH_ROWS = (
    st.lists(st.tuples(types(), st.booleans()), min_size=1, max_size=3)
    .map(lambda columns: [spark_types.StructField(f"c{i}", *column) for i, column in enumerate(columns)])
    .flatmap(lambda fields: rows_of_schema(spark_types.StructType(fields)))
)


def column(kind: spark_types.DataType, *cells: Any) -> Rows:
    return Rows(schema_of(c0=kind), [cells])


INNER = spark_types.StructType([spark_types.StructField("value", spark_types.LongType(), False)])
KEY = schema_of(k=INNER)


@examples(60)
@given(SCHEMAS_WITH_ROWS)
@example(column(spark_types.MapType(spark_types.StringType(), spark_types.TimestampNTZType()), None))
@example(column(spark_types.MapType(KEY, spark_types.LongType()), (((None,), 1), (((5,),), 2))))
@example(
    column(
        spark_types.ArrayType(spark_types.ArrayType(spark_types.StringType())),
        Hidden((("hidden",),)),
        ((), None, ("", None)),
    )
)
def test_rows_are_read_back(kind: str, rows: Rows) -> None:
    with new_table(kind) as table:
        refused = columns_without_feature(rows.schema) if kind == "delta" else []
        if refused:
            check_refused(table, rows.schema, refused)
            return
        write(table, rows.schema, rows.batches())
        check_read(table, rows)


@examples(30)
@given(SCHEMAS_WITH_ROWS)
@example(column(KEY, (None,), ((5,),), None, Hidden(((7,),))))
@example(
    column(
        spark_types.ArrayType(KEY, False),
        ((None,), ((5,),)),
    )
)
def test_rows_are_read_back_from_a_table_with_required_columns(kind: str, rows: Rows) -> None:
    """Required at every level, as in the schema of the rows."""
    with new_table(kind) as table:
        if kind == "delta" and columns_without_feature(rows.schema):
            return
        table.create(arrow_schema(rows.schema))
        write(table, rows.schema, rows.batches())
        check_read(table, rows)


@examples(30)
@given(SCHEMAS_WITH_ROWS)
@example(column(spark_types.MapType(KEY, spark_types.LongType()), ((((None,),), 1),)))
def test_columns_that_spark_declares_not_null_may_be_null_in_a_new_table(kind: str, rows: Rows) -> None:
    """At every level: its flags are hints, not promises."""
    nullable = Rows(with_nulls(rows.schema, allowed=True), rows.columns)
    with new_table(kind) as table:
        if kind == "iceberg" or not columns_without_feature(rows.schema):
            write(table, with_nulls(rows.schema, allowed=False), nullable.batches())
            check_read(table, nullable)


def test_a_new_column_that_would_make_the_table_unreadable_is_refused(kind: str) -> None:
    """In Delta, where the Delta library overlooks timestamp_ntz in maps. Iceberg knows no such thing."""
    old = column(spark_types.LongType(), 1)
    new = Rows(
        spark_types.StructType(
            [
                *old.schema.fields,
                spark_types.StructField(
                    "odd one", spark_types.MapType(spark_types.LongType(), spark_types.TimestampNTZType())
                ),
            ]
        ),
        [[2], [((1, 5),)]],
    )
    with new_table(kind) as table:
        write(table, old.schema, old.batches())
        if kind == "iceberg":
            write(table, new.schema, new.batches(), schemaEvolution="addColumns")
            assert by_duckdb(table).num_rows == 2
            return
        with pytest.raises(SchemaMismatchError, match="odd one"):
            write(table, new.schema, new.batches(), schemaEvolution="addColumns")
        check_read(table, old)


@examples(40)
@given(types().flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values(kind), max_size=4))))
def test_arrays_hold_their_values(kind: str, case: tuple[spark_types.DataType, list[Any]]) -> None:
    """The other tests rely on this."""
    type_, cells = case
    array = arrow_array(cells, arrow_schema(schema_of(c=type_)).field("c").type)
    array.validate(full=True)
    assert values_of(array) == [as_read(value, type_) for value in cells]


def test_lists_of_lists_without_offsets_are_read_back(kind: str) -> None:
    """As Spark 4.0 hands over lists whose elements are all empty; Arrow's `nbytes` dies of them."""
    inner = pa.list_(pa.int64())
    no_buffer = pa.foreign_buffer(0, 0)
    nothing = pa.Array.from_buffers(inner, 0, [None, no_buffer], children=[pa.array([], pa.int64())])
    lists = pa.ListArray.from_arrays(pa.array([0, 0, None, 0], pa.int32()), nothing)
    structs = pa.StructArray.from_arrays([lists], names=["l"])
    batch = pa.RecordBatch.from_arrays([lists, structs], names=["l", "s"])
    type_ = spark_types.ArrayType(spark_types.ArrayType(spark_types.LongType()))
    schema = schema_of(l=type_, s=schema_of(l=type_))

    conformed = SchemaProjector(arrow_schema(schema), "here")(batch)
    for column in (conformed.column("l"), conformed.column("s").field(0)):
        assert column.values.buffers()[1].size >= 4
    with new_table(kind) as table:
        write(table, schema, [batch])
        assert rows_of(by_duckdb(table)) == {((), ((),)): 2, (None, (None,)): 1}


# Texts ------------------------------------------------------------------------------------------------

INVALID_UTF8 = [b"\xff", b"a\xed\xa0\x80b", b"\xc0\x80", b"\xf4\x90\x80\x80", b"x" * 40 + b"\xc3"]
"""A lone byte, half of a surrogate pair, a NUL the long way, beyond Unicode, cut in the middle."""


def invalid_texts(data: bytes) -> pa.Array:
    """What Spark makes of CAST(binary AS STRING)."""
    valid = pa.array([b"ok", data, None])
    return pa.Array.from_buffers(pa.string(), 3, valid.buffers())


@pytest.mark.parametrize("data", INVALID_UTF8, ids=repr)
@pytest.mark.parametrize("place", ["t", "s.t", "l.element", "m.key", "m.value"])
def test_invalid_utf8_is_refused(kind: str, data: bytes, place: str) -> None:
    """While writing: a schema does not tell. No reader would take the file."""
    texts = invalid_texts(data)
    numbers = pa.array(range(3), pa.int64())
    strings, longs = spark_types.StringType(), spark_types.LongType()
    kinds: dict[str, tuple[spark_types.DataType, pa.Array]] = {
        "t": (strings, texts),
        "s.t": (
            schema_of(t=strings),
            pa.StructArray.from_arrays([texts], names=["t"]),
        ),
        "l.element": (spark_types.ArrayType(strings), pa.ListArray.from_arrays([0, 1, 2, 3], texts)),
        "m.key": (
            spark_types.MapType(strings, longs),
            pa.MapArray.from_arrays([0, 1, 2, 2], texts[:2], numbers[:2]),
        ),
        "m.value": (
            spark_types.MapType(longs, strings),
            pa.MapArray.from_arrays([0, 1, 2, 3], numbers, texts),
        ),
    }
    type_, array = kinds[place]
    batch = pa.RecordBatch.from_arrays([array], names=[place.partition(".")[0]])
    with new_table(kind) as table:
        with pytest.raises(SchemaMismatchError, match=f"A string in {place} is not valid UTF-8"):
            write(
                table,
                schema_of(**{batch.schema.names[0]: type_}),
                [batch],
            )
        assert table.data_files() == set()
        assert by_duckdb(table).num_rows == 0


def test_texts_and_bytes_of_megabytes_are_read_back(kind: str) -> None:
    texts = ["x" * (8 << 20), "\U0001f600" * (1 << 20), "\0" * (1 << 20), "", None]
    blobs = [b"\xff" * (8 << 20), b"\0" * (1 << 20), b"\xc3\x28" * (1 << 19), b"", None]
    schema = schema_of(t=spark_types.StringType(), b=spark_types.BinaryType())
    rows = Rows(schema, [texts, blobs])
    with new_table(kind) as table:
        write(table, schema, rows.batches())
        check_read(table, rows)
