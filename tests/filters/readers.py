"""Readers of tables. Each counts the rows that a filter finds: pushed down into the scan, and on all rows."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyiceberg import expressions as ice
from servers.maven import classpath
from tests.filters import sql
from tests.filters.rows import Filter
from tests.support.lakes import IcebergLake, LakeTable

from penstock import reader
from penstock.readers.conditions import Conditions
from penstock.readers.predicates import Predicate
from penstock.testing.duckdb_reader import connect

Count: TypeAlias = Callable[[Filter], int]
Counts: TypeAlias = list[int | str]
"""For each filter the number of rows, or the error."""


@dataclass(frozen=True)
class Reader:
    name: str
    """With the version: the key of known faults."""
    formats: tuple[str, ...]
    open: Callable[[LakeTable], tuple[Count, Count]]
    """Returns what counts with a pushed-down filter, and on all rows."""

    def read(self, lake: LakeTable, filters: Sequence[Filter]) -> tuple[Counts, Counts]:
        """Return the counts of all filters: pushed down, and on all rows."""
        pushed, on_all = self.open(lake)
        return _each(pushed, filters), _each(on_all, filters)


def _each(count: Count, filters: Sequence[Filter]) -> Counts:
    def one(filter_: Filter) -> int | str:
        try:
            return int(count(filter_))
        except Exception as error:  # noqa: BLE001 - of any library: the result of this filter
            return f"{type(error).__name__}: {str(error)[:200]}"

    return [one(filter_) for filter_ in filters]


def _duckdb(lake: LakeTable) -> tuple[Count, Count]:
    connection = connect()
    connection.execute("SET TimeZone = 'UTC'")
    table = lake.relation(connection)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE all_rows AS FROM {table}")

    def count(relation: str, one: Filter) -> int:
        query = f"SELECT count(*) FROM {relation} WHERE {sql.where('duckdb', one)}"
        return int(connection.execute(query).fetchall()[0][0])

    return lambda one: count(table, one), lambda one: count("all_rows", one)


def _polars(lake: LakeTable) -> tuple[Count, Count]:
    scan = lake.scan()
    frame = scan.collect()
    return (
        lambda one: int(scan.filter(_polars_filter(one)).select(pl.len()).collect().item()),
        lambda one: frame.filter(_polars_filter(one)).height,
    )


def _polars_filter(one: Filter) -> Any:
    top, _, field = one.column.partition(".")
    column = pl.col(top).struct.field(field) if field else pl.col(top)
    if one.operator in ("null", "not null", "nan"):
        return {"null": column.is_null, "not null": column.is_not_null, "nan": column.is_nan}[one.operator]()
    if one.operator == "prefix":
        return column.str.starts_with(one.value)
    dtype: Any = pl.from_arrow(pa.array([one.value], one.type)).dtype  # type: ignore[union-attr]
    return _compared(one.operator, column, pl.lit(one.value, dtype=dtype))


def _compared(operator: str, left: Any, right: Any) -> Any:
    methods = {"=": "__eq__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
    return getattr(left, methods[operator])(right)


def _delta_dataset(lake: LakeTable) -> tuple[Count, Count]:
    dataset = DeltaTable(str(lake.folder)).to_pyarrow_dataset()
    rows = dataset.to_table()
    return (
        lambda one: int(dataset.count_rows(filter=_arrow_filter(one))),
        lambda one: int(rows.filter(_arrow_filter(one)).num_rows),
    )


def _arrow_filter(one: Filter) -> ds.Expression:
    column = ds.field(*one.column.split("."))
    if one.operator in ("null", "not null", "nan"):
        return {"null": column.is_null, "not null": column.is_valid, "nan": column.is_nan}[one.operator]()
    if one.operator == "prefix":
        return pc.starts_with(column, one.value)
    return _compared(one.operator, column, pa.scalar(one.value, one.type))


def _datafusion(lake: LakeTable) -> tuple[Count, Count]:
    table = DeltaTable(str(lake.folder))
    engine = QueryBuilder().register("t", table)

    def count(query: str) -> int:
        return int(pa.table(engine.execute(query).read_all()).column(0)[0].as_py())

    def where(one: Filter) -> str:
        return sql.where("datafusion", one)

    return (
        lambda one: count(f"SELECT count(*) AS n FROM t WHERE {where(one)}"),
        lambda one: count(f"SELECT count(*) FILTER (WHERE {where(one)}) AS n FROM t"),
    )


def _pyiceberg(lake: LakeTable) -> tuple[Count, Count]:
    assert isinstance(lake, IcebergLake)
    table = lake.load()
    rows = table.scan().to_arrow()
    return (
        lambda one: table.scan(_iceberg_filter(one), selected_fields=("flag",)).to_arrow().num_rows,
        lambda one: rows.filter(_arrow_filter(one)).num_rows,
    )


def _iceberg_filter(one: Filter) -> Any:
    if isinstance(one.value, float) and math.isnan(one.value):
        return ice.AlwaysFalse()  # a literal cannot be NaN
    if one.operator in ("null", "not null", "nan"):
        kinds: Mapping[str, Any] = {"null": ice.IsNull, "not null": ice.NotNull, "nan": ice.IsNaN}
        return kinds[one.operator](one.column)
    predicates: Mapping[str, Any] = {
        "=": ice.EqualTo,
        "<": ice.LessThan,
        "<=": ice.LessThanOrEqual,
        ">": ice.GreaterThan,
        ">=": ice.GreaterThanOrEqual,
        "prefix": ice.StartsWith,
    }
    return predicates[one.operator](one.column, one.value)


def _penstock(lake: LakeTable) -> tuple[Count, Count]:
    """Compared with the rows as Polars reads them, which orders NaN last, as Spark does."""
    table = reader.open_table(f"penstock.{lake.kind}", lake.options, columns="flag")
    _, on_all = _polars(lake)
    conditions = Conditions(table.reader.schema(table.reader.column_names))

    def count(one: Filter) -> int:
        rows = table.and_where([_penstock_condition(conditions, one)]).to_reader()
        return sum(batch.num_rows for batch in rows)

    return count, on_all


def _penstock_condition(conditions: Conditions, one: Filter) -> Predicate:
    name = one.column.split(".")
    if one.operator in ("null", "not null"):
        return conditions.is_null(name, negated=one.operator == "not null")
    if one.operator == "nan":
        return conditions.is_nan(name)
    if one.operator == "prefix":
        return conditions.starts_with(name, one.value)
    return conditions.compare(name, one.operator, one.value)


LIBRARIES: Sequence[Reader] = (
    Reader("penstock", ("delta", "iceberg"), _penstock),
    Reader(f"duckdb {version('duckdb')}", ("delta", "iceberg"), _duckdb),
    Reader(f"polars {version('polars')}", ("delta", "iceberg"), _polars),
    Reader(f"deltalake {version('deltalake')} to_pyarrow_dataset", ("delta",), _delta_dataset),
    Reader(f"deltalake {version('deltalake')} QueryBuilder", ("delta",), _datafusion),
    Reader(f"pyiceberg {version('pyiceberg')}", ("iceberg",), _pyiceberg),
)


# Spark, in a process of its own -------------------------------------------------------------------

_POM = Path(__file__).parents[1] / "fixtures" / "jvm_readers" / "pom.xml"


def spark_counts(
    lakes: Mapping[str, tuple[LakeTable, list[Filter]]], folder: Path
) -> Iterator[tuple[str, str, Counts, Counts]]:
    """Yield connector, name of the lake, and both counts, by one Spark with both connectors.

    Raises:
        MavenUnreachableError: no repository answers for their jars.
    """
    jars = classpath(_POM).replace(os.pathsep, ",")
    tables = {
        name: {
            "format": lake.kind,
            "location": lake.metadata_location if isinstance(lake, IcebergLake) else str(lake.folder),
            "where": [sql.where("spark", one) for one in filters],
        }
        for name, (lake, filters) in lakes.items()
    }
    request, answer = folder / "request.json", folder / "answer.json"
    request.write_text(json.dumps({"jars": jars, "tables": tables}))
    program = Path(__file__).with_name("spark_program.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(request), str(answer)], capture_output=True, text=True, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    for name, (pushed, on_all) in json.loads(answer.read_text()).items():
        jar = rf"({tables[name]['format']}-spark(?:-runtime)?)[-_][0-9._-]*-([0-9.]+)\.jar"
        (connector,) = re.findall(jar, jars)
        yield " ".join(connector), name, pushed, on_all
