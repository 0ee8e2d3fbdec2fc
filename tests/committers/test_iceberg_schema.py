"""Columns of a query are matched with those of a table by name, and files by field id."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from tests.support.iceberg_tables import Tables, field_ids
from tests.support.readers import iceberg_rows

from penstock.committers.errors import SchemaMismatchError
from penstock.committers.iceberg.catalog import open_catalog
from penstock.committers.iceberg.file_schema_check import check_files_fit
from penstock.committers.iceberg.schema import column_path
from penstock.committers.iceberg.target import IcebergTableLayout
from penstock.writers.parquet.schema_projection import check_fits


def _created(
    tables: Tables, *columns: ice.NestedField | tuple[str, ice.IcebergType], spec: PartitionSpec | None = None
) -> None:
    """A table of another writer. `(name, type)` is an optional column."""
    catalog = open_catalog(tables.config)
    catalog.create_namespace_if_not_exists("db")
    fields = [
        column
        if isinstance(column, ice.NestedField)
        else ice.NestedField(1000 + n, column[0], column[1], required=False)
        for n, column in enumerate(columns)
    ]
    catalog.create_table("db.t", Schema(*fields), partition_spec=spec or PartitionSpec())


def _required(name: str, kind: ice.IcebergType) -> ice.NestedField:
    return ice.NestedField(abs(hash(name)) % 1000 + 2000, name, kind, required=True)


# By name -----------------------------------------------------------------------------------------------


def test_fields_of_nested_structs_are_matched_by_name_too(tables: Tables) -> None:
    inner = pa.struct([("X", pa.int64()), ("y", pa.string())])
    table = pa.schema([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    tables.create(table)
    other = pa.struct([("x", pa.int32())])
    target = tables.plan(
        pa.schema([("M", pa.map_(pa.string(), other)), ("l", pa.list_(other)), ("s", other)])
    )
    assert target.schema.names == ["s", "l", "m"]
    assert target.schema.field("s").type.names == ["X", "y"]
    assert target.schema.field("l").type.value_type.names == ["X", "y"]
    assert field_ids(target.schema)["m"] == (3, {"key": 9, "value": (10, {"X": 11, "y": 12})})


def test_a_name_that_fits_exactly_is_not_ambiguous(tables: Tables) -> None:
    _created(tables, ("a", ice.LongType()), ("A", ice.LongType()))
    assert tables.plan(pa.schema([("A", pa.int64())])).schema.names == ["a", "A"]
    _both = pa.schema([("A", pa.int64()), ("a", pa.int64())])
    assert tables.plan(_both).schema.names == ["a", "A"]


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([("ID", pa.int64()), ("Id", pa.int64())], "'ID', 'Id' differ only in case"),
        ([("id", pa.int64()), ("ID", pa.int64())], "'ID' differs from another column only in case"),
        ([("new", pa.int64()), ("NEW", pa.int64())], "'NEW' differs from another column only in case"),
        (
            [("s", pa.struct([("x", pa.int32()), ("X", pa.int32())]))],
            r"'s\.X' differs from another column only in case",
        ),
    ],
)
def test_names_that_differ_by_case_are_refused(
    tables: Tables, columns: list[tuple[str, pa.DataType]], says: str, evolve: bool
) -> None:
    _created(
        tables,
        ("id", ice.LongType()),
        ("s", ice.StructType(ice.NestedField(90, "x", ice.IntegerType(), required=False))),
    )
    with pytest.raises(SchemaMismatchError, match=says):
        tables.plan(pa.schema(columns), evolve=evolve)


def test_a_name_that_fits_two_columns_is_refused(tables: Tables) -> None:
    _created(tables, ("aB", ice.LongType()), ("Ab", ice.LongType()))
    with pytest.raises(SchemaMismatchError, match="'AB' matches 'aB', 'Ab' of the table"):
        tables.plan(pa.schema([("AB", pa.int64())]))


WIDENED: list[tuple[pa.DataType, ice.IcebergType]] = [
    (pa.int8(), ice.IntegerType()),
    (pa.int16(), ice.LongType()),
    (pa.int32(), ice.LongType()),
    (pa.float32(), ice.DoubleType()),
    (pa.decimal128(5, 2), ice.DecimalType(9, 2)),
    (pa.timestamp("us", "Europe/Berlin"), ice.TimestamptzType()),
    (pa.timestamp("ms"), ice.TimestampType()),
    (pa.large_string(), ice.StringType()),
    (pa.dictionary(pa.int32(), pa.string()), ice.StringType()),
    (pa.large_list(pa.int8()), ice.ListType(90, ice.IntegerType(), element_required=True)),
    (
        pa.map_(pa.int32(), pa.float32()),
        ice.MapType(90, ice.LongType(), 91, ice.DoubleType(), value_required=True),
    ),
]


@pytest.mark.parametrize(("given", "kind"), WIDENED, ids=str)
def test_types_are_widened_if_exact(tables: Tables, given: pa.DataType, kind: ice.IcebergType) -> None:
    """The writers can write all of them."""
    _created(tables, ("v", kind))
    source = pa.schema([("v", given)])
    check_fits(source, tables.plan(source).schema)


INT = ice.IntegerType()
TWO_WAYS = list(permutations((pa.int64(), pa.int8())))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.int64(), INT),
        *[(pa.int32(), kind) for kind in (ice.DoubleType(), ice.FloatType(), ice.DecimalType(38, 0))],
        (pa.float64(), ice.FloatType()),
        (pa.decimal128(9, 2), ice.DecimalType(5, 2)),
        (pa.decimal128(5, 2), ice.DecimalType(9, 3)),
        (pa.timestamp("us"), ice.TimestamptzType()),
        (pa.timestamp("us", "UTC"), ice.TimestampType()),
        (pa.date32(), ice.TimestampType()),
        (pa.string(), ice.UUIDType()),
        (pa.binary(), ice.FixedType(4)),
        (pa.string(), ice.TimeType()),
        (pa.bool_(), ice.IntegerType()),
        (pa.list_(pa.int64()), ice.LongType()),
        (pa.int64(), ice.ListType(90, ice.LongType())),
        (pa.struct([("x", pa.int64())]), ice.StructType(ice.NestedField(90, "x", INT, required=False))),
        (pa.list_(pa.int64()), ice.ListType(90, INT)),
        *[
            (pa.map_(*kinds), ice.MapType(90, INT, 91, INT))
            for kinds in permutations((pa.int64(), pa.int8()))
        ],
    ],
    ids=str,
)
def test_lossy_types_are_refused(tables: Tables, given: pa.DataType, kind: ice.IcebergType) -> None:
    _created(tables, ("other", ice.BooleanType()), ("v", kind))
    with pytest.raises(SchemaMismatchError, match=r"'v.* is .* in the table and .* in the query") as caught:
        tables.plan(pa.schema([("v", given)]))
    assert "The query has:\n    v: " in str(caught.value)
    assert "The table has:\n    other: boolean\n    v: " in str(caught.value)


def test_missing_optional_columns_stay_null_and_required_ones_are_refused(tables: Tables) -> None:
    inner = ice.StructType(
        ice.NestedField(90, "x", ice.IntegerType(), required=True),
        ice.NestedField(91, "y", ice.IntegerType(), required=False),
    )
    _created(tables, _required("id", ice.LongType()), ("s", inner), ("name", ice.StringType()))
    target = tables.plan(pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int32())]))]))
    assert not target.schema.field("id").nullable
    assert [inner.nullable for inner in target.schema.field("s").type] == [False, True]
    with pytest.raises(SchemaMismatchError, match="'id' is NOT NULL in the table and missing in the query"):
        tables.plan(pa.schema([("name", pa.string())]), evolve=True)
    with pytest.raises(SchemaMismatchError, match=r"'s\.x' is NOT NULL in the table and missing"):
        tables.plan(pa.schema([("id", pa.int64()), ("s", pa.struct([("y", pa.int32())]))]))


def test_columns_that_no_query_has_stay_null_unless_required(tables: Tables) -> None:
    """The files have their Parquet types."""
    columns = [("t", ice.TimeType()), ("u", ice.UUIDType()), ("f", ice.FixedType(4))]
    _created(tables, ("id", ice.LongType()), *columns)
    tables.append([1])
    schema = tables.plan(pa.schema([("id", pa.int64())])).schema
    assert [field.type for field in schema][1:] == [pa.time64("us"), pa.uuid(), pa.binary(4)]
    assert iceberg_rows(tables.load().metadata_location) == [(1, None, None, None)]


def test_a_required_column_that_no_query_has_is_refused_by_name(tables: Tables) -> None:
    _created(tables, ("id", ice.LongType()), _required("u", ice.UUIDType()))
    with pytest.raises(SchemaMismatchError, match=r"'u' is NOT NULL.*missing"):
        tables.plan(pa.schema([("id", pa.int64())]))


# New columns -------------------------------------------------------------------------------------------

INNER = pa.struct([("x", pa.int32())])
NESTED = pa.schema([("s", INNER), ("l", pa.list_(INNER)), ("m", pa.map_(INNER, INNER)), ("id", pa.int64())])
WIDER = pa.struct([("new", pa.struct([("deep", pa.list_(pa.int16()))])), ("x", pa.int32())])
WIDE = pa.schema(
    [
        ("extra", WIDER),
        ("s", WIDER),
        ("l", pa.list_(WIDER)),
        ("m", pa.map_(INNER, WIDER)),
        ("more", pa.string()),
    ]
)


def test_new_columns_are_refused_unless_asked_for(tables: Tables) -> None:
    tables.create(NESTED)
    with pytest.raises(
        SchemaMismatchError, match=r"the table has no column 'extra', 'more' \(schemaEvolution"
    ):
        tables.plan(WIDE)
    with pytest.raises(SchemaMismatchError, match=r"'s' of the table has no column 's\.new'"):
        tables.plan(WIDE)


def test_new_columns_come_last_with_the_field_ids_that_pyiceberg_gives_them(tables: Tables) -> None:
    """The commit adds them in this order, at the top level and in structs, lists and values of maps."""
    tables.create(NESTED)
    target = tables.plan(WIDE, evolve=True)
    assert target.new_columns == ("s.new", "l.element.new", "m.value.new", "extra", "more")
    assert target.schema.names == ["s", "l", "m", "id", "extra", "more"]
    assert target.schema.field("s").type.names == ["x", "new"]
    planned = Schema.model_validate_json(target.schema_json)
    table = tables.load()
    with table.transaction() as transaction, transaction.update_schema() as update:
        for name in target.new_columns:
            column = planned.find_field(name)
            update.add_column(column_path(planned, name), column.field_type)
    assert tables.load().schema().as_struct() == planned.as_struct()
    assert tables.load().metadata.last_column_id == planned.highest_field_id
    assert check_files_fit(tables.load().metadata, target.content((), "append")) == []


def test_field_ids_of_dropped_columns_are_not_given_again(tables: Tables) -> None:
    table, _ = tables.create()
    with table.update_schema() as update:
        update.delete_column("ts")
    target = tables.plan(pa.schema([("id", pa.int64()), ("extra", pa.int32())]), evolve=True)
    assert field_ids(target.schema) == {"id": 1, "name": 2, "extra": 4}


def test_keys_of_maps_get_no_new_fields(tables: Tables) -> None:
    tables.create(NESTED)
    with pytest.raises(SchemaMismatchError, match=r"'m\.key' of the table has no column 'm\.key\.new'"):
        tables.plan(pa.schema([("m", pa.map_(WIDER, INNER))]), evolve=True)


def test_a_column_with_a_dot_in_its_name_is_added_as_one(tables: Tables) -> None:
    tables.create()
    target = tables.plan(pa.schema([("a.b", pa.int64())]), evolve=True)
    assert target.new_columns == ("a.b",)
    assert column_path(Schema.model_validate_json(target.schema_json), "a.b") == ("a.b",)


# By field id -------------------------------------------------------------------------------------------


def _fits(tables: Tables, target: IcebergTableLayout) -> list[str]:
    return check_files_fit(tables.load().metadata, target.content((), "append"))


def _alter(tables: Tables, change: Callable[[Any], object]) -> None:
    with tables.load().update_schema(allow_incompatible_changes=True) as update:
        change(update)


TYPED = pa.schema(
    [
        ("id", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.decimal128(5, 2)),
        ("s", INNER),
        ("l", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)

HARMLESS: dict[str, Callable[[Any], object]] = {  # top-level columns: test_iceberg_foreign_writers.py
    "rename nested": lambda u: u.rename_column("s.x", "y"),
    "decimal": lambda u: u.update_column("d", ice.DecimalType(9, 2)),
    "element": lambda u: u.update_column("l.element", ice.LongType()),
    "value": lambda u: u.update_column("m.value", ice.LongType()),
    "drop struct": lambda u: u.delete_column("s"),
    "add nested": lambda u: u.add_column(("s", "z"), ice.StringType()),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_harmless_changes_of_the_table_are_accepted(tables: Tables, change: Callable[[Any], object]) -> None:
    tables.create(TYPED)
    target = tables.plan(TYPED)
    _alter(tables, change)
    assert _fits(tables, target) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda u: u.add_column(("s", "must"), ice.StringType(), required=True),
            r"'s\.must' is NOT NULL in the table and missing in the files",
        ),
        (lambda u: u._set_column_requirement("l.element", required=True), r"'l\.element' is now NOT NULL"),
        (lambda u: u.update_column("id", ice.StringType()), "'id' is now string; the files have int"),
        (lambda u: u.update_column("m.value", ice.DateType()), r"'m\.value' is now date; the files have int"),
        (lambda u: u.update_column("d", ice.DecimalType(4, 2)), r"'d' is now decimal\(4, 2\)"),
    ],
)
def test_outdated_files_are_refused(tables: Tables, change: Callable[[Any], object], says: str) -> None:
    tables.create(TYPED)
    target = tables.plan(TYPED)
    _alter(tables, change)
    with pytest.raises(SchemaMismatchError, match=says) as caught:
        _fits(tables, target)
    assert "The files have:\n    id: int\n" in str(caught.value)
    assert "The table has:\n    id: " in str(caught.value)
    assert "was not committed" in str(caught.value)


def test_new_columns_are_missing_until_they_are_added(tables: Tables) -> None:
    tables.create(NESTED)
    target = tables.plan(WIDE, evolve=True)
    assert _fits(tables, target) == list(target.new_columns)


def _evolving(tables: Tables) -> IcebergTableLayout:
    tables.create()
    return tables.plan(pa.schema([("id", pa.int64()), ("extra", INNER), ("more", pa.int64())]), evolve=True)


def _add(tables: Tables, *columns: tuple[str, ice.IcebergType]) -> Table:
    with tables.load().update_schema() as update:
        for name, kind in columns:
            update.add_column(name, kind)
    return tables.load()


EXTRA = ("extra", ice.StructType(ice.NestedField(1, "x", ice.IntegerType(), required=False)))


def test_columns_that_a_concurrent_driver_has_added_are_there(tables: Tables) -> None:
    target = _evolving(tables)
    _add(tables, EXTRA, ("more", ice.LongType()))
    assert _fits(tables, target) == []


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([("theirs", ice.StringType())], "'theirs' has the field id of the files' 'extra'"),
        ([("more", ice.LongType())], "'more' has the field id of the files' 'extra'"),
        ([("theirs", ice.StringType()), ("EXTRA", ice.LongType())], "'theirs' has the field id"),
        ([("extra", ice.StringType())], "'extra' is now string; the files have struct"),
        (
            [("extra", ice.StructType(ice.NestedField(1, "y", ice.IntegerType(), required=False)))],
            r"the table's 'y' has the field id of the files' 'extra\.x'",
        ),
        ([("extra", ice.StructType())], r"the table's 'extra' has no field 'extra\.x' with the field id"),
    ],
)
def test_new_columns_that_can_no_longer_get_their_field_ids_are_refused(
    tables: Tables, columns: list[tuple[str, ice.IcebergType]], says: str
) -> None:
    target = _evolving(tables)
    _add(tables, *columns)
    with pytest.raises(SchemaMismatchError, match=says) as caught:
        _fits(tables, target)
    assert "Undo" not in str(caught.value), "a field id is assigned only once"
    assert "penstock skip" in str(caught.value)


def test_a_field_id_that_went_to_a_column_dropped_since_is_not_taken(tables: Tables) -> None:
    target = _evolving(tables)
    _add(tables, ("theirs", ice.StringType()))
    _alter(tables, lambda u: u.delete_column("theirs"))
    with pytest.raises(SchemaMismatchError, match="the field id of 'extra' was assigned to another column"):
        _fits(tables, target)


def test_a_list_whose_elements_have_another_field_id_is_refused(tables: Tables) -> None:
    """Readers would find no elements in the files."""
    tables.create()
    target = tables.plan(pa.schema([("l", pa.list_(pa.int64()))]), evolve=True)
    metadata = tables.load().metadata
    theirs = ice.NestedField(4, "l", ice.ListType(99, ice.LongType(), element_required=False), required=False)
    schema = Schema(*metadata.schema().fields, theirs, schema_id=1)
    changed = metadata.model_copy(update={"schemas": [schema], "current_schema_id": 1})
    with pytest.raises(SchemaMismatchError, match=r"'l\.element' has another field id"):
        check_files_fit(changed, target.content((), "append"))


def test_a_new_column_whose_name_was_taken_under_another_id_is_refused(tables: Tables) -> None:
    target = _evolving(tables)
    _add(
        tables, ("a", ice.LongType()), ("b", ice.LongType()), ("c", ice.LongType()), ("MORE", ice.LongType())
    )
    _alter(tables, lambda u: u.delete_column("a").delete_column("b").delete_column("c"))
    with pytest.raises(SchemaMismatchError, match="'more' is now 'MORE' in the table, with another field id"):
        _fits(tables, target)


def test_the_schema_of_files_of_a_partitioned_table_has_all_columns(tables: Tables) -> None:
    """Data files of Iceberg also contain the partition columns."""
    fields = (
        ice.NestedField(1, "id", ice.LongType(), required=False),
        ice.NestedField(2, "p", ice.StringType(), required=False),
    )
    _created(tables, *fields, spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")))
    assert tables.plan(pa.schema([("id", pa.int64()), ("p", pa.string())])).schema.names == ["id", "p"]
