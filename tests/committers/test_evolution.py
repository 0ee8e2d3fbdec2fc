"""Which changes of a schema each format allows, and which rows it leaves to the writer. Pure."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema as DeltaSchema
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from penstock.committers.contract import Changes
from penstock.committers.database import matching as postgres
from penstock.committers.database.columns import needed_changes
from penstock.committers.database.layout import TableColumn, TableState
from penstock.committers.delta import schema_match as delta
from penstock.committers.delta.schema import delta_fields
from penstock.committers.errors import SchemaMismatchError
from penstock.committers.file_tables.evolution import ADD_COLUMNS, Evolution, Narrowing
from penstock.committers.iceberg import schema as iceberg
from penstock.committers.iceberg.arrow import iceberg_struct
from penstock.committers.postgres.address import PostgresAddress
from penstock.committers.postgres.dialect import DIALECT
from penstock.committers.postgres.types import sql_type

EVOLVE = Evolution(adds=True, alters=True)
INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
D52, D92, D93, D94 = (pa.decimal128(*size) for size in ((5, 2), (9, 2), (9, 3), (6, 4)))
ADDRESS = PostgresAddress("host", "5432", "db", "public", "events")


def in_iceberg(table: pa.DataType, rows: pa.DataType, **options: Any) -> pa.DataType | None:
    """What the column becomes; None if the rows are refused."""
    struct = iceberg_struct(pa.schema([("v", table)]), "t")
    schema = Schema(*struct.fields)
    source = pa.schema([("v", rows)])
    try:
        found = iceberg.match(source, schema, 99, evolution=EVOLVE, table_name="t", **options)
    except SchemaMismatchError:
        return None
    assert bool(found.altered) == (found.schema != schema)
    kinds = iceberg_struct(pa.schema([("v", rows)]), "t").fields[0].field_type
    return rows if found.schema.find_field("v").field_type == kinds else table


def in_delta(table: pa.DataType, rows: pa.DataType, **options: Any) -> pa.DataType | None:
    fields, given = (delta_fields(pa.schema([("v", kind)]), "t") for kind in (table, rows))
    try:
        changes = delta.match(given, fields, evolution=EVOLVE, widens=True, table_uri="t", **options)
    except SchemaMismatchError:
        return None
    after = delta.changed_fields(fields, given, changes)
    return DeltaSchema.from_json(json.dumps({"type": "struct", "fields": after})).to_arrow().field("v").type


def in_postgres(table: pa.DataType, rows: pa.DataType, **options: Any) -> pa.DataType | None:
    state = TableState("1", (TableColumn("v", str(sql_type(table))),))
    try:
        found = postgres.match(pa.schema([("v", rows)]), state, ADDRESS, DIALECT, evolution=EVOLVE, **options)
    except SchemaMismatchError:
        return None
    return rows if found.columns[0].sql_type == sql_type(rows) else table


FORMATS = {"delta": in_delta, "iceberg": in_iceberg, "postgres": in_postgres}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("table", "rows"), [(INT, LONG), (FLOAT, DOUBLE), (D52, D92), (LONG, LONG)], ids=str)
def test_every_format_widens(kind: str, table: pa.DataType, rows: pa.DataType) -> None:
    assert FORMATS[kind](table, rows) == rows
    assert FORMATS[kind](rows, table) == rows, "narrower rows fit"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("table", "rows"),
    [(INT, DOUBLE), (LONG, DOUBLE), (INT, pa.string()), (pa.string(), INT), (D52, D94), (DOUBLE, D52)],
    ids=str,
)
def test_no_format_changes_a_type_in_another_way(kind: str, table: pa.DataType, rows: pa.DataType) -> None:
    assert FORMATS[kind](table, rows) is None


def test_only_delta_widens_the_scale_of_decimals() -> None:
    assert {kind: of(D52, D93) for kind, of in FORMATS.items()} == {
        "delta": D93,
        "iceberg": None,
        "postgres": None,
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_evolving_widens_also_where_the_writer_could_check_each_value(kind: str) -> None:
    assert FORMATS[kind](INT, LONG, narrows=Narrowing.NUMBERS) == LONG


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_types_inside_of_columns_are_widened_except_in_keys_of_maps(kind: str) -> None:
    for make in (pa.list_, lambda one: pa.map_(pa.string(), one), lambda one: pa.struct([("a", one)])):
        assert FORMATS[kind](make(INT), make(LONG)) is not None
    assert FORMATS[kind](pa.map_(INT, INT), pa.map_(LONG, INT)) is None


def test_delta_records_where_a_type_was_changed() -> None:
    table = pa.map_(pa.string(), pa.list_(INT))
    fields, given = (
        delta_fields(pa.schema([("v", one)]), "t") for one in (table, pa.map_(pa.string(), pa.list_(LONG)))
    )
    changes = delta.match(given, fields, evolution=EVOLVE, widens=True, table_uri="t")
    (after,) = delta.changed_fields(fields, given, changes)
    assert after["metadata"]["delta.typeChanges"] == [
        {"fromType": "integer", "toType": "long", "fieldPath": "value.element"}
    ]


def test_keys_of_changes_and_columns_that_are_never_null_stay() -> None:
    rows = pa.schema([pa.field("a", LONG), pa.field("b", LONG, nullable=False), pa.field("c", LONG)])
    evolution = EVOLVE.of_batch(rows, Changes(keys=("A",)))
    assert [evolution.relaxes((), name) for name in "abc"] == [False, False, True]
    assert [evolution.may_alter((), name) for name in "abc"] == [False, True, True]
    table = Schema(
        *(
            NestedField(n, name, iceberg_struct(rows, "t").fields[0].field_type, required=True)
            for n, name in enumerate("abc", 1)
        )
    )
    found = iceberg.match(rows, table, 3, evolution=evolution, table_name="t")
    assert found.altered == ("c",)


def test_a_quarantine_changes_nothing() -> None:
    rows = pa.schema([("v", pa.string()), ("more", INT)])
    fields = delta_fields(pa.schema([("v", INT)]), "t")
    of_delta = delta.match(
        delta_fields(rows, "t"), fields, evolution=Evolution(), table_uri="t", narrows=Narrowing.ANY
    )
    assert not of_delta
    table = Schema(*iceberg_struct(pa.schema([("v", INT)]), "t").fields)
    of_iceberg = iceberg.match(rows, table, 1, evolution=Evolution(), table_name="t", narrows=Narrowing.ANY)
    assert of_iceberg.schema == table
    with pytest.raises(SchemaMismatchError, match="more"):
        iceberg.match(rows, table, 1, evolution=Evolution(), table_name="t", narrows=Narrowing.NUMBERS)


def test_a_column_is_renamed_with_its_fields() -> None:
    table = Schema(*iceberg_struct(pa.schema([("s", pa.struct([("a", INT)]))]), "t").fields)
    rows = pa.schema([("t", pa.struct([("b", LONG), ("c", INT)]))])
    evolution = Evolution(adds=True, alters=True, renames=(("s", "t"), ("s.a", "b")))
    found = iceberg.match(rows, table, 2, evolution=evolution, table_name="t")
    assert (found.new_columns, found.altered) == (("t.c",), ("t.b",))
    assert found.renames == (("t", "s"), ("t.b", "a"))
    inner = found.schema.fields[0].field_type
    assert isinstance(inner, StructType)
    assert [(field.field_id, field.name) for field in inner.fields] == [(2, "b"), (3, "c")]
    assert iceberg.match(rows, found.schema, 3, evolution=evolution, table_name="t").renames == ()


def test_postgres_alters_a_table_in_one_statement_and_only_as_needed() -> None:
    before = (TableColumn("n", "integer", is_required=True), TableColumn("old", "text"))
    rows = pa.schema([("n", LONG), ("new", pa.string()), ("x", INT)])
    evolution = Evolution(adds=True, alters=True, renames=(("old", "new"),)).of_batch(rows, "append")
    found = postgres.match(rows, TableState("1", before), ADDRESS, DIALECT, evolution=evolution)
    staged = [(column.name, column.sql_type) for column in found.columns]

    def altered(columns: tuple[TableColumn, ...]) -> list[str]:
        wanted = needed_changes(staged, ["x"], found.changes, columns, ADDRESS, DIALECT.types)
        return list(DIALECT.alter(ADDRESS, wanted))

    assert altered(before) == [
        'ALTER TABLE "public"."events" RENAME COLUMN "old" TO "new"',
        'ALTER TABLE "public"."events" ADD COLUMN "x" integer, ALTER COLUMN "n" TYPE bigint, '
        'ALTER COLUMN "n" DROP NOT NULL',
    ]
    after = (TableColumn("n", "bigint"), TableColumn("new", "text"), TableColumn("x", "integer"))
    assert altered(after) == []


def test_added_columns_alone_leave_types_as_they_are() -> None:
    table = Schema(*iceberg_struct(pa.schema([("v", INT)]), "t").fields)
    with pytest.raises(SchemaMismatchError, match="'v' is int in the table and long"):
        iceberg.match(pa.schema([("v", LONG)]), table, 1, evolution=ADD_COLUMNS, table_name="t")
