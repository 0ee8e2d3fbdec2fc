"""Any column name comes back as it was, or is refused before a file is written, and named."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType
from tests.bad_input.budget import examples
from tests.bad_input.names import (
    MAYBE_UNUSABLE_NAMES,
    NAMES,
    same_paths,
    short_paths,
    structs_in,
    unusable_names,
)
from tests.bad_input.refusals import check_refused
from tests.bad_input.rows import Rows, rows_of_schema
from tests.bad_input.tables import by_duckdb, new_table, write
from tests.bad_input.values import rows_of, types_of
from tests.support.lakes import LAKES

from penstock.committers.errors import SchemaMismatchError

pytestmark = pytest.mark.parametrize("kind", LAKES)


def types(names: st.SearchStrategy[str], depth: int = 2) -> st.SearchStrategy[DataType]:
    simple = st.sampled_from([LongType(), StringType()])
    if depth == 0:
        return simple
    below = types(names, depth - 1)
    return st.one_of(
        simple,
        structs(names, below),
        st.builds(ArrayType, below),
        st.builds(MapType, simple | structs(names, simple), below),
    )


def structs(
    names: st.SearchStrategy[str], below: st.SearchStrategy[DataType]
) -> st.SearchStrategy[StructType]:
    fields = st.lists(st.builds(StructField, names, below), min_size=1, max_size=4)
    return st.builds(StructType, fields)


def schemas(names: st.SearchStrategy[str]) -> st.SearchStrategy[StructType]:
    return structs(names, types(names))


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


B = schema(b=LongType())


@examples(80)
@given(schemas(MAYBE_UNUSABLE_NAMES).flatmap(lambda found: rows_of_schema(found, rows_max=3)))
@example(Rows(schema(a=B, **{"a.b": LongType()}), [[(1,)], [2]]))
@example(Rows(schema(a=B, **{"A.B": LongType()}), [[(1,)], [2]]))
def test_names_come_back_as_they_were_or_are_refused_by_name(kind: str, rows: Rows) -> None:
    refused = unusable_names(rows.schema)
    if kind == "iceberg" and not refused:
        refused = same_paths(rows.schema)
    with new_table(kind) as table:
        if refused:
            check_refused(table, rows.schema, refused)
            return
        write(table, rows.schema, rows.batches())
        read = by_duckdb(table)
        assert types_of(read.schema) == rows.types(kind)
        assert rows_of(read) == rows.seen()


@examples(30)
@given(schemas(NAMES), schemas(NAMES), st.data())
@example(schema(a=B), schema(**{"a.b": LongType()}), None)
@example(schema(x=LongType()), schema(a=B, **{"A.b": LongType()}), None)
@example(schema(a=MapType(StringType(), B)), schema(**{"a.b": LongType()}), None)
@example(schema(a=ArrayType(LongType())), schema(**{"A.Element": LongType()}), None)
def test_names_of_new_columns_come_back_as_they_were_or_are_refused_by_name(
    kind: str, old: StructType, new: StructType, data: st.DataObject | None
) -> None:
    """The old columns stay in the rows."""
    both = StructType([*old.fields, *new.fields])
    assume(not unusable_names(both))
    assume(kind == "delta" or not same_paths(old))
    first = _rows(old, data)
    second = _rows(both, data)
    with new_table(kind) as table:
        write(table, old, first.batches())
        refused = _refused_beside(old, new) if kind == "iceberg" else set()
        if refused:
            with pytest.raises(SchemaMismatchError) as caught:
                write(table, both, second.batches(), schemaEvolution="addColumns")
            assert any(repr(name)[1:-1] in str(caught.value) for name in refused)
            assert rows_of(by_duckdb(table)) == first.seen()
            return
        write(table, both, second.batches(), schemaEvolution="addColumns")
        read = by_duckdb(table)
        assert types_of(read.schema) == second.types(kind)
        nulls = [[None] * len(first.columns[0])] * len(new.fields)
        assert rows_of(read) == second.seen() + Rows(both, [*first.columns, *nulls]).seen()


def _rows(of: StructType, data: st.DataObject | None) -> Rows:
    return Rows(of, [[None]] * len(of.fields)) if data is None else data.draw(rows_of_schema(of, rows_max=2))


def _refused_beside(old: StructType, new: StructType) -> set[str]:
    taken = short_paths(old)
    return {name for name in new.names if name.lower() in taken} | same_paths(
        StructType([*old.fields, *new.fields])
    )


def test_the_names_are_odd_indeed(kind: str) -> None:
    """Structs are found wherever they are, or names in them would not be looked at."""
    inside = schema(x=ArrayType(MapType(B, ArrayType(B))))
    assert [struct.names for struct in structs_in(inside)] == [["x"], ["b"], ["b"]]
    assert same_paths(schema(a=B, **{"A.b": LongType()})) == {"a.b", "A.b"}
    assert "a.b" in short_paths(schema(a=MapType(StringType(), B)))
