"""Readers of tables. Each counts what filters find: pushed down into the scan, and on all rows."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeAlias

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

from penstock.testing.duckdb_reader import connect

Counts: TypeAlias = list[int | str]
"""For each filter how many rows it finds, or how it fails."""


class Reader(Protocol):
    @property
    def formats(self) -> tuple[str, ...]: ...

    @property
    def name(self) -> str:
        """With the version: the key of known faults."""
        ...

    def read(self, lake: LakeTable, filters: list[Filter]) -> tuple[Counts, Counts]:
        """(pushed down, on all rows)"""
        ...


def _each(find: Any, filters: list[Filter]) -> Counts:
    def one(filter_: Filter) -> int | str:
        try:
            return int(find(filter_))
        except Exception as error:  # noqa: BLE001 - of whatever library: how the filter fails
            return f"{type(error).__name__}: {str(error)[:200]}"

    return [one(filter_) for filter_ in filters]


class DuckDb:
    formats = ("delta", "iceberg")
    name = f"duckdb {version('duckdb')}"

    def read(self, lake: LakeTable, filters: list[Filter]) -> tuple[Counts, Counts]:
        connection = connect()
        connection.execute("SET TimeZone = 'UTC'")
        table = lake.relation(connection)

        def found(one: Filter) -> int:
            query = f"SELECT count(*) FROM {table} WHERE {sql.where('duckdb', one)}"
            return int(connection.execute(query).fetchall()[0][0])

        connection.execute(f"CREATE OR REPLACE TEMP TABLE all_rows AS FROM {table}")
        (on_all,) = connection.execute(sql.counts("duckdb", filters, "all_rows")).fetchall()
        return _each(found, filters), list(on_all)


class Polars:
    formats = ("delta", "iceberg")
    name = f"polars {version('polars')}"

    def read(self, lake: LakeTable, filters: list[Filter]) -> tuple[Counts, Counts]:
        scan = lake.scan()
        frame = scan.collect()
        pushed = _each(lambda one: scan.filter(_polars(one)).select(pl.len()).collect().item(), filters)
        return pushed, _each(lambda one: frame.filter(_polars(one)).height, filters)


def _polars(one: Filter) -> Any:
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


class DeltaDataset:
    """deltalake's dataset for Arrow."""

    formats = ("delta",)
    name = f"deltalake {version('deltalake')} to_pyarrow_dataset"

    def read(self, lake: LakeTable, filters: list[Filter]) -> tuple[Counts, Counts]:
        dataset = DeltaTable(str(lake.folder)).to_pyarrow_dataset()
        rows = dataset.to_table()
        pushed = _each(lambda one: dataset.count_rows(filter=_arrow(one)), filters)
        return pushed, _each(lambda one: rows.filter(_arrow(one)).num_rows, filters)


def _arrow(one: Filter) -> ds.Expression:
    column = ds.field(*one.column.split("."))
    if one.operator in ("null", "not null", "nan"):
        return {"null": column.is_null, "not null": column.is_valid, "nan": column.is_nan}[one.operator]()
    if one.operator == "prefix":
        return pc.starts_with(column, one.value)
    return _compared(one.operator, column, pa.scalar(one.value, one.type))


class DataFusion:
    """deltalake's SQL."""

    formats = ("delta",)
    name = f"deltalake {version('deltalake')} QueryBuilder"

    def read(self, lake: LakeTable, filters: list[Filter]) -> tuple[Counts, Counts]:
        table = DeltaTable(str(lake.folder))
        engine = QueryBuilder().register("t", table)

        def query(text: str) -> list[int]:
            rows = pa.table(engine.execute(text).read_all())
            return [column[0].as_py() for column in rows.columns]

        pushed = _each(
            lambda one: query(f"SELECT count(*) AS n FROM t WHERE {sql.where('datafusion', one)}")[0], filters
        )
        on_all = _each(lambda one: query(sql.counts("datafusion", [one], "t"))[0], filters)
        return pushed, on_all


class PyIceberg:
    formats = ("iceberg",)
    name = f"pyiceberg {version('pyiceberg')}"

    def read(self, lake: LakeTable, filters: list[Filter]) -> tuple[Counts, Counts]:
        assert isinstance(lake, IcebergLake)
        table = lake.load()
        rows = table.scan().to_arrow()

        def found(one: Filter) -> int:
            return int(table.scan(_pyiceberg(one), selected_fields=("flag",)).to_arrow().num_rows)

        return _each(found, filters), _each(lambda one: rows.filter(_arrow(one)).num_rows, filters)


def _pyiceberg(one: Filter) -> Any:
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


LIBRARIES: Sequence[Reader] = (DuckDb(), Polars(), DeltaDataset(), DataFusion(), PyIceberg())


# Spark, in a process of its own -------------------------------------------------------------------

_POM = Path(__file__).parents[1] / "fixtures" / "jvm_readers" / "pom.xml"


def spark_counts(
    lakes: Mapping[str, tuple[LakeTable, list[Filter]]], folder: Path
) -> Iterator[tuple[str, str, Counts, Counts]]:
    """(connector, name of the lake, pushed down, on all rows) by one Spark with both connectors.

    Raises:
        MavenUnreachableError: their jars are not to be had.
    """
    jars = classpath(_POM).replace(os.pathsep, ",")
    tables = {name: _spark_table(lake, filters) for name, (lake, filters) in lakes.items()}
    request, answer = folder / "request.json", folder / "answer.json"
    request.write_text(json.dumps({"jars": jars, "tables": tables}))
    program = Path(__file__).with_name("spark_program.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(request), str(answer)], capture_output=True, text=True, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    for name, (pushed, on_all) in json.loads(answer.read_text()).items():
        yield _connector(jars, tables[name]["format"]), name, pushed, on_all


def _connector(jars: str, kind: str) -> str:
    """Its name and version, by the name of the jar."""
    (found,) = re.findall(rf"({kind}-spark(?:-runtime)?)[-_][0-9._-]*-([0-9.]+)\.jar", jars)
    return " ".join(found)


def _spark_table(lake: LakeTable, filters: list[Filter]) -> dict[str, Any]:
    return {
        "format": lake.kind,
        "location": lake.metadata_location if isinstance(lake, IcebergLake) else str(lake.folder),
        "where": [sql.where("spark", one) for one in filters],
    }
