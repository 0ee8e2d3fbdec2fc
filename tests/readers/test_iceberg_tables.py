"""Iceberg tables, of other engines too, are read as other readers read them, or refused by name."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, LongType, StringType
from tests.support.foreign_iceberg import NAMES, load
from tests.support.lakes import IcebergLake
from tests.support.readers import duckdb_with_iceberg

from penstock import ConfigurationError, TableNotSupportedError, reader

REFUSED = {
    "equality_deletes": "has equality deletes",
}


def read(warehouse: Path, table: str, **options: str) -> pa.Table:
    return reader.read(
        "penstock.iceberg", {"warehouse": str(warehouse), "table": table}, **options
    ).read_all()


def in_any_order(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_a_table_of_java_is_read(name: str, tmp_path: Path) -> None:
    """Also with position deletes, without field ids, and of older schemas and partitionings."""
    table = load(name, tmp_path)
    with duckdb_with_iceberg() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        theirs = connection.execute(f"FROM iceberg_scan('{table.metadata_location}')").to_arrow_table()
    ours = read(tmp_path, f"foreign.{name}")
    assert ours.num_rows > 0
    assert ours.schema.names == theirs.schema.names
    for column in ours.schema.names:
        own = ours.column(column)
        if isinstance(own.type, pa.UuidType):
            assert in_any_order(pa.table({"u": own.cast(pa.binary(16))})) is not None
            continue
        assert in_any_order(ours.select([column])) == in_any_order(
            pa.table({column: theirs.column(column).cast(own.type)})
        )


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    with pytest.raises(TableNotSupportedError, match=REFUSED[name]):
        read(tmp_path, f"foreign.{name}")


def lake(folder: Path, rows: pa.Table) -> IcebergLake:
    made = IcebergLake(folder)
    made.create(rows.schema)
    made.append_rows(rows)
    return made


def test_renamed_widened_and_new_columns_are_read(tmp_path: Path) -> None:
    rows = pa.table(
        {"id": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, None], pa.float32()), "s": [{"a": 1}, None]}
    )
    made = lake(tmp_path, rows)
    with made.load().update_schema() as update:
        update.update_column("id", LongType())
        update.update_column("f", DoubleType())
    with made.load().update_schema() as update:
        update.rename_column("id", "number")
        update.rename_column("s.a", "b")
        update.add_column(("s", "c"), StringType())
        update.add_column("more", StringType())
    made.append_rows(
        pa.table({"number": [3], "f": [0.1], "s": pa.array([{"b": 5, "c": "x"}]), "more": ["y"]})
    )
    found = {row["number"]: row for row in read(tmp_path, made.table).to_pylist()}
    assert found == {
        1: {"number": 1, "f": 0.5, "s": {"b": 1, "c": None}, "more": None},
        2: {"number": 2, "f": None, "s": None, "more": None},
        3: {"number": 3, "f": 0.1, "s": {"b": 5, "c": "x"}, "more": "y"},
    }
    for where, ids in {
        "number < 3": [1, 2],
        "f = 0.5": [1],
        "more IS NULL": [1, 2],
        "s.b > 1": [3],
        "s.c IS NULL": [1, 2],
        "number > 1 AND more = 'y'": [3],
    }.items():
        assert (
            sorted(read(tmp_path, made.table, where=where, columns="number")["number"].to_pylist()) == ids
        ), where


def test_a_file_with_nan_is_not_skipped(tmp_path: Path) -> None:
    made = lake(tmp_path, pa.table({"f": [math.nan, math.nan]}))
    made.append_rows(pa.table({"f": [1.0]}))
    assert len(read(tmp_path, made.table, where="f > 5")) == 2
    assert len(read(tmp_path, made.table, where="f = 1")) == 1
    assert len(read(tmp_path, made.table, where="f < 1")) == 0
    table = {"warehouse": str(tmp_path), "table": made.table}
    assert len(list(reader.open_table("penstock.iceberg", table, where="f < 1").files())) == 1


def test_branches_tags_snapshots_and_times_are_read(tmp_path: Path) -> None:
    made = lake(tmp_path, pa.table({"id": [1]}))
    first = made.load().current_snapshot()
    assert first is not None
    made.load().manage_snapshots().create_tag(first.snapshot_id, "first").create_branch(
        first.snapshot_id, "aside"
    ).commit()
    with made.load().update_schema() as update:
        update.add_column("more", StringType())
    made.append_rows(pa.table({"id": [2], "more": ["x"]}))

    def found(**options: str) -> list[dict[str, object]]:
        return sorted(read(tmp_path, made.table, **options).to_pylist(), key=lambda row: str(row["id"]))

    past = datetime.fromtimestamp(first.timestamp_ms / 1000, timezone.utc).isoformat()
    assert found() == [{"id": 1, "more": None}, {"id": 2, "more": "x"}]
    assert found(tag="first") == found(snapshotId=str(first.snapshot_id)) == [{"id": 1}]
    assert found(timestampAsOf=past) == [{"id": 1}]
    assert found(branch="aside") == [{"id": 1, "more": None}]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tag": "main"}, "has no tag 'main'"),
        ({"branch": "none"}, "has no branch 'none'"),
        ({"snapshotId": "7"}, "has no snapshot 7, or it has expired"),
        ({"timestampAsOf": "1999-01-01"}, "has no snapshot at 1999-01-01T00:00:00"),
        ({"tag": "a", "branch": "b"}, "branch and tag are given"),
        ({"path": "/lake"}, "path is not an option"),
        ({"table": "lake.nothing"}, "There is no Iceberg table"),
    ],
)
def test_what_is_not_there_is_said(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    made = lake(tmp_path, pa.table({"id": [1]}))
    with pytest.raises(ConfigurationError, match=problem):
        reader.read("penstock.iceberg", {"warehouse": str(tmp_path), "table": made.table, **options})


def test_a_table_without_snapshots_is_empty(tmp_path: Path) -> None:
    made = IcebergLake(tmp_path)
    made.create(pa.schema([("id", pa.int64())]))
    assert read(tmp_path, made.table).to_pydict() == {"id": []}
