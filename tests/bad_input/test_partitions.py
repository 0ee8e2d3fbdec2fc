"""Any value of any partition column is read back, or refused by the name of the column."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyiceberg.transforms import IdentityTransform
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tests.bad_input.kinds import PRIMITIVES, values
from tests.bad_input.names import unusable_names
from tests.bad_input.partitions import (
    is_delta_partition,
    is_refused_by_delta,
    is_refused_by_iceberg,
    transforms,
)
from tests.bad_input.rows import Rows
from tests.bad_input.tables import by_duckdb, check_read, check_refused, examples, is_in, new_table, write
from tests.bad_input.texts import NAMES
from tests.support.lakes import IcebergLake, LakeTable

from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError
from penstock.datasource.spark.types import arrow_schema


@dataclass(frozen=True)
class Partitioned:
    """Rows of partition values, numbered in the column `n_`."""

    names: tuple[str, ...]
    types: tuple[DataType, ...]
    values: list[tuple[Any, ...]]

    @property
    def schema(self) -> StructType:
        parts = [StructField(name, kind) for name, kind in zip(self.names, self.types, strict=True)]
        return StructType([StructField("n_", LongType()), *parts])

    def rows(self, *, is_empty_null: bool = False) -> Rows:
        columns = [list(column) for column in zip(*self.values, strict=True)]
        if is_empty_null:
            columns = [[None if value == "" else value for value in column] for column in columns]
        return Rows(self.schema, [list(range(len(self.values))), *columns])


@st.composite
def partitioned(draw: st.DrawFn) -> Partitioned:
    names = draw(st.lists(NAMES | st.just("p"), min_size=1, max_size=2, unique_by=lambda name: name.lower()))
    kinds = [draw(PRIMITIVES | st.just(StringType())) for _ in names]
    rows = draw(st.lists(st.tuples(*map(values, kinds)), min_size=1, max_size=6))
    return Partitioned(tuple(names), tuple(kinds), rows)


def single(kind: DataType, *values: Any, name: str = "p") -> Partitioned:
    return Partitioned((name,), (kind,), [(value,) for value in values])


@examples(80)
@given(partitioned())
@example(single(LongType(), None, name="x" * 300))
@example(single(StringType(), "ok", "__HIVE_DEFAULT_PARTITION__"))
@example(single(StringType(), "ok", "x" * 300))
def test_delta_partitions_are_read_back_or_refused_by_name(case: Partitioned) -> None:
    """But '' becomes NULL, as in Spark and as docs/types.md says."""
    assume(not unusable_names(case.schema))
    option = {"partitionBy": json.dumps(case.names)}
    columns = list(zip(case.names, case.types, strict=True))
    bad_columns = {name for name, kind in columns if not is_delta_partition(kind, name)}
    bad_values = {
        name
        for row in case.values
        for value, (name, kind) in zip(row, columns, strict=True)
        if is_refused_by_delta(value, kind, name)
    }
    with new_table("delta") as table:
        if bad_columns:
            check_refused(table, case.schema, bad_columns, **option)
            assert not table.folder.exists()
        elif bad_values:
            check_one_refused(table, case, bad_values, option)
        else:
            write(table, case.schema, case.rows().batches(), **option)
            check_read(table, case.rows(is_empty_null=True))


@examples(80)
@given(partitioned(), st.data())
@example(single(DecimalType(6, 2), -999999), "truncate(10, {})")
@example(single(DoubleType(), 0), "{}")
@example(single(TimestampType(), 2**63 - 1), "hour({})")
@example(Partitioned(("a", "b"), (DecimalType(29, 12), DecimalType(29, 12)), [(1, None)]), "{}")
def test_iceberg_partitions_are_read_back_or_refused_by_name(
    case: Partitioned, data: st.DataObject | str
) -> None:
    """By every transform."""
    assume(not unusable_names(case.schema))
    terms = [data if isinstance(data, str) else data.draw(transforms(kind)) for kind in case.types]
    columns = list(zip(case.names, case.types, terms, strict=True))
    option = {"partitionSpec": ", ".join(_term(*column, i) for i, column in enumerate(columns))}
    bad_columns = {name for name, kind, _ in columns if isinstance(kind, DoubleType)}
    if not bad_columns and is_one_avro_type(columns):
        bad_columns = set(case.names)
    bad_values = {
        name
        for row in case.values
        for value, (name, kind, term) in zip(row, columns, strict=True)
        if is_refused_by_iceberg(value, kind, term)
    }
    with new_table("iceberg") as table:
        if bad_columns:
            check_refused(
                table, case.schema, [next(name for name in case.names if name in bad_columns)], **option
            )
        elif bad_values:
            check_one_refused(table, case, bad_values, option)
        else:
            write(table, case.schema, case.rows().batches(), **option)
            check_read(table, case.rows())


def test_a_table_that_is_partitioned_by_two_decimals_of_one_type_is_refused_by_their_names() -> None:
    """Another program created it. pyiceberg would write a manifest that duckdb and Java cannot read."""
    kind = DecimalType(29, 12)
    case = Partitioned(("a", "b"), (kind, kind), [(1, None)])
    with new_table("iceberg") as table:
        assert isinstance(table, IcebergLake)
        table.create(arrow_schema(case.schema))
        with table.load().update_spec() as spec:
            for name in case.names:
                spec.add_field(name, IdentityTransform(), f"by_{name}")
        with pytest.raises(TableNotSupportedError, match="'by_a' and 'by_b'"):
            write(table, case.schema, case.rows().batches())
        assert table.data_files() == set()


def is_one_avro_type(columns: list[tuple[str, DataType, str]]) -> bool:
    """Return True for two decimal partitions of one type: pyiceberg would define the type twice in a file."""
    decimals = [kind for _, kind, term in columns if isinstance(kind, DecimalType) and "bucket" not in term]
    return len(decimals) == 2 and decimals[0] == decimals[1]


def _term(name: str, kind: DataType, transform: str, number: int) -> str:
    quoted = "`" + name.replace("`", "``") + "`"
    return f"{transform.format(quoted)} as part_{number}"


def check_one_refused(table: LakeTable, case: Partitioned, names: set[str], option: dict[str, str]) -> None:
    """Check for an error that names the column of a bad value."""
    with pytest.raises(SchemaMismatchError) as caught:
        write(table, case.schema, case.rows().batches(), **option)
    assert any(is_in(str(caught.value), name) for name in names)
    assert table.data_files() == set()
    assert by_duckdb(table).num_rows == 0


@examples(30)
@given(
    st.lists(st.none() | st.tuples(values(StringType())), min_size=1, max_size=5),
    transforms(StringType()),
    NAMES,
)
def test_iceberg_partitions_by_struct_fields_are_read_back(values: list[Any], term: str, name: str) -> None:
    """NULL where the struct is."""
    struct = StructType([StructField(name, StringType())])
    schema = StructType([StructField("s", struct)])
    assume(not unusable_names(schema))
    rows = Rows(schema, [values])
    quoted = "s.`" + name.replace("`", "``") + "`"
    with new_table("iceberg") as table:
        write(table, schema, rows.batches(), partitionSpec=f"{term.format(quoted)} as part")
        check_read(table, rows)
