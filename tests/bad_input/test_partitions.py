"""Any value of any partition column comes back as it was, or is refused by the column's name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType as IcebergDecimalType
from pyiceberg.types import LongType as IcebergLongType
from pyiceberg.types import NestedField
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
from tests.bad_input.budget import examples
from tests.bad_input.kinds import PRIMITIVES
from tests.bad_input.names import NAMES, unusable_names
from tests.bad_input.partitions import (
    is_delta_partition,
    is_refused_by_delta,
    is_refused_by_iceberg,
    partition_values,
    transforms,
)
from tests.bad_input.refusals import check_refused
from tests.bad_input.rows import Rows
from tests.bad_input.tables import by_duckdb, new_table, write
from tests.bad_input.values import rows_of, types_of
from tests.support.lakes import LakeTable

from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError


@dataclass(frozen=True)
class Partitioned:
    """One row for each value; in the column `n`, which no partition is by, its number."""

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
    rows = draw(st.lists(st.tuples(*map(partition_values, kinds)), min_size=1, max_size=6))
    return Partitioned(tuple(names), tuple(kinds), rows)


def single(kind: DataType, *values: Any, name: str = "p") -> Partitioned:
    return Partitioned((name,), (kind,), [(value,) for value in values])


@examples(80)
@given(partitioned())
@example(single(LongType(), None, name="x" * 300))
@example(single(StringType(), "ok", "__HIVE_DEFAULT_PARTITION__"))
@example(single(StringType(), "ok", "x" * 300))
def test_delta_partitions_come_back_identically_or_are_refused_by_name(case: Partitioned) -> None:
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
            read = by_duckdb(table)
            assert types_of(read.schema) == case.rows().types("delta")
            assert rows_of(read) == case.rows(is_empty_null=True).seen()


@examples(80)
@given(partitioned(), st.data())
@example(single(DecimalType(6, 2), -999999), "truncate(10, {})")
@example(single(DoubleType(), 0), "{}")
@example(single(TimestampType(), 2**63 - 1), "hour({})")
@example(Partitioned(("a", "b"), (DecimalType(29, 12), DecimalType(29, 12)), [(1, None)]), "{}")
def test_iceberg_partitions_come_back_identically_or_are_refused_by_name(
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
            read = by_duckdb(table)
            assert types_of(read.schema) == case.rows().types("iceberg")
            assert rows_of(read) == case.rows().seen()


def test_a_table_that_is_partitioned_by_two_decimals_of_one_type_is_refused_by_their_names() -> None:
    """It was made by others: pyiceberg would write a manifest that duckdb and Java cannot read."""
    kind = DecimalType(29, 12)
    case = Partitioned(("a", "b"), (kind, kind), [(1, None)])
    iceberg = Schema(
        NestedField(1, "n_", IcebergLongType()),
        NestedField(2, "a", IcebergDecimalType(29, 12)),
        NestedField(3, "b", IcebergDecimalType(29, 12)),
    )
    parts = PartitionSpec(
        IcebergPartitionField(2, 1000, IdentityTransform(), "by_a"),
        IcebergPartitionField(3, 1001, IdentityTransform(), "by_b"),
    )
    with new_table("iceberg") as table:
        table.create(iceberg, partition_spec=parts)
        with pytest.raises(TableNotSupportedError, match="'by_a' and 'by_b'"):
            write(table, case.schema, case.rows().batches())
        assert table.data_files() == set()


def is_one_avro_type(columns: list[tuple[str, DataType, str]]) -> bool:
    """Two partition values that are decimals alike: pyiceberg would define the type twice in a file."""
    decimals = [kind for _, kind, term in columns if isinstance(kind, DecimalType) and "bucket" not in term]
    return len(decimals) == 2 and decimals[0] == decimals[1]


def _term(name: str, kind: DataType, transform: str, number: int) -> str:
    quoted = "`" + name.replace("`", "``") + "`"
    return f"{transform.format(quoted)} as part_{number}"


def check_one_refused(table: LakeTable, case: Partitioned, names: set[str], option: dict[str, str]) -> None:
    """The error names the column of the value that it came upon first."""
    with pytest.raises(SchemaMismatchError) as caught:
        write(table, case.schema, case.rows().batches(), **option)
    assert any(repr(name)[1:-1] in str(caught.value) or name in str(caught.value) for name in names)
    assert table.data_files() == set()
    assert by_duckdb(table).num_rows == 0


@examples(30)
@given(
    st.lists(st.none() | st.tuples(partition_values(StringType())), min_size=1, max_size=5),
    transforms(StringType()),
    NAMES,
)
def test_iceberg_partitions_of_fields_in_structs_come_back_identically(
    values: list[Any], term: str, name: str
) -> None:
    """NULL where the struct is."""
    struct = StructType([StructField(name, StringType())])
    schema = StructType([StructField("s", struct)])
    assume(not unusable_names(schema))
    rows = Rows(schema, [values])
    quoted = "s.`" + name.replace("`", "``") + "`"
    with new_table("iceberg") as table:
        write(table, schema, rows.batches(), partitionSpec=f"{term.format(quoted)} as part")
        assert rows_of(by_duckdb(table)) == rows.seen()
