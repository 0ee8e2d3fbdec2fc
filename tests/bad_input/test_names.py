"""Any column name is read back, or refused by name before a file is written."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType
from tests.bad_input.kinds import walk
from tests.bad_input.names import same_paths, short_paths, unusable_names
from tests.bad_input.rows import Rows, rows_of_schema, schema_of
from tests.bad_input.tables import by_duckdb, check_read, check_refused, examples, is_in, new_table, write
from tests.bad_input.texts import MAYBE_UNUSABLE_NAMES, NAMES
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


B = schema_of(b=LongType())


@examples(80)
@given(schemas(MAYBE_UNUSABLE_NAMES).flatmap(lambda found: rows_of_schema(found, rows_max=3)))
@example(Rows(schema_of(**{"x" * 3000: LongType()}), [[1]]))
@example(Rows(schema_of(a=B, **{"a.b": LongType()}), [[(1,)], [2]]))
@example(Rows(schema_of(a=B, **{"A.B": LongType()}), [[(1,)], [2]]))
def test_names_are_read_back_or_refused_by_name(kind: str, rows: Rows) -> None:
    refused = unusable_names(rows.schema)
    if kind == "iceberg" and not refused:
        refused = same_paths(rows.schema)
    with new_table(kind) as table:
        if refused:
            check_refused(table, rows.schema, refused)
            return
        write(table, rows.schema, rows.batches())
        check_read(table, rows)


@examples(30)
@given(schemas(NAMES), schemas(NAMES), st.data())
@example(schema_of(a=B), schema_of(**{"a.b": LongType()}), None)
@example(schema_of(x=LongType()), schema_of(a=B, **{"A.b": LongType()}), None)
@example(schema_of(a=MapType(StringType(), B)), schema_of(**{"a.b": LongType()}), None)
@example(schema_of(a=ArrayType(LongType())), schema_of(**{"A.Element": LongType()}), None)
def test_names_of_new_columns_are_read_back_or_refused_by_name(
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
        refused = _refused_new_names(old, new) if kind == "iceberg" else set()
        if refused:
            with pytest.raises(SchemaMismatchError) as caught:
                write(table, both, second.batches(), schemaEvolution="addColumns")
            assert any(is_in(str(caught.value), name) for name in refused)
            assert rows_of(by_duckdb(table)) == first.as_read()
            return
        write(table, both, second.batches(), schemaEvolution="addColumns")
        read = by_duckdb(table)
        assert types_of(read.schema) == second.types(kind)
        nulls = [[None] * len(first.columns[0])] * len(new.fields)
        assert rows_of(read) == second.as_read() + Rows(both, [*first.columns, *nulls]).as_read()


def _rows(of: StructType, data: st.DataObject | None) -> Rows:
    return Rows(of, [[None]] * len(of.fields)) if data is None else data.draw(rows_of_schema(of, rows_max=2))


def _refused_new_names(old: StructType, new: StructType) -> set[str]:
    taken = short_paths(old)
    return {name for name in new.names if name.lower() in taken} | same_paths(
        StructType([*old.fields, *new.fields])
    )


def test_names_are_checked_at_every_level(kind: str) -> None:
    inside = schema_of(x=ArrayType(MapType(B, ArrayType(B))))
    structs = [part for part in walk(inside) if isinstance(part, StructType)]
    assert [struct.names for struct in structs] == [["x"], ["b"], ["b"]]
    assert same_paths(schema_of(a=B, **{"A.b": LongType()})) == {"a.b", "A.b"}
    assert "a.b" in short_paths(schema_of(a=MapType(StringType(), B)))
