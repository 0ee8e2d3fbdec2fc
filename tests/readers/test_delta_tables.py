"""Delta tables, of other engines too, are read as other readers read them, or refused by name."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import shutil
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock import ConfigurationError, RetryableError, TableNotSupportedError, reader
from penstock.testing import DeltaTable as TestedTable
from penstock.testing.duckdb_reader import connect

FIXTURES = Path(__file__).parents[1] / "fixtures" / "delta"
REFUSED = {
    "column_mapping_id": r"column mapping \(delta.columnMapping.mode = id\)",
    "column_mapping_name": r"column mapping \(delta.columnMapping.mode = name\)",
    "iceberg_compat": r"column mapping",
    "variant": "is or contains VARIANT",
}
READ = sorted({path.name for path in FIXTURES.iterdir()} - REFUSED.keys())


def read(path: Path | str, **options: str) -> pa.Table:
    return reader.read("penstock.delta", path=str(path), **options).read_all()


def as_duckdb(path: Path | str) -> pa.Table:
    with connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        relation = TestedTable(str(path)).relation(connection)
        return connection.execute(f"FROM {relation}").to_arrow_table()


def in_any_order(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.parametrize("name", READ)
def test_a_table_of_sparks_own_engine_is_read(name: str) -> None:
    ours, theirs = read(FIXTURES / name), as_duckdb(FIXTURES / name)
    assert ours.num_rows > 0 or name == "invariant"
    assert in_any_order(ours) == in_any_order(theirs.cast(ours.schema))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(name: str) -> None:
    with pytest.raises(TableNotSupportedError, match=REFUSED[name]) as refused:
        read(FIXTURES / name)
    assert "Nothing was read." in str(refused.value)


def test_other_columns_than_variants_are_read() -> None:
    names = [field.name for field in DeltaTable(FIXTURES / "variant").schema().fields]
    assert read(FIXTURES / "variant", columns="id", where="id > 0").num_rows > 0
    assert len(names) > 1


def test_features_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "deletion_vectors", tmp_path / "table")
    for feature in ("fromTheFuture", "catalogManaged"):
        for entry in sorted((tmp_path / "table" / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            for action in actions:
                if "protocol" in action:
                    protocol = action["protocol"]
                    protocol["readerFeatures"] = ["deletionVectors", feature]
                    protocol["writerFeatures"] = [*protocol["writerFeatures"], feature]
            entry.write_text("\n".join(map(json.dumps, actions)))
        with pytest.raises(TableNotSupportedError, match="cannot be read"):
            read(tmp_path / "table")


def test_deleted_rows_are_left_out_in_every_part_of_a_file(tmp_path: Path) -> None:
    """Rows are numbered in the whole file, also where only some row groups are read."""
    shutil.copytree(FIXTURES / "deletion_vectors", tmp_path / "table")
    (file,) = [
        one
        for one in reader.open_table("penstock.delta", path=str(tmp_path / "table")).files()
        if one.deletes
    ]
    stored = tmp_path / "table" / file.path
    rows = pq.read_table(stored)
    pq.write_table(rows, stored, row_group_size=2)
    assert sorted(read(tmp_path / "table")["id"].to_pylist()) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert read(tmp_path / "table", where="id > 4")["id"].to_pylist() == [6, 7, 8, 9, 10]
    table = reader.open_table("penstock.delta", path=str(tmp_path / "table"))
    scan = table.scan()
    size = stored.stat().st_size
    parts = [replace(file, size_bytes=size, start=start, end=start + 100) for start in range(0, size, 100)]
    found = [row for part in parts for batch in scan.read([part]) for row in batch["id"].to_pylist()]
    whole = [row for batch in scan.read([file]) for row in batch["id"].to_pylist()]
    assert found == whole


VALUES: dict[str, pa.Array] = {
    "text": pa.array(["a/b", "x=1", "100%", "", None, "é ü", "a b"]),
    "number": pa.array([-1, 0, 2**62, None, 1, 2, 3], pa.int64()),
    "price": pa.array(
        [Decimal("1.20"), Decimal(0), None, Decimal("99.99"), *[Decimal(1)] * 3], pa.decimal128(9, 2)
    ),
    "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None, *[dt.date(2026, 1, 1)] * 4]),
    "moment": pa.array([-1, None, *[10**15] * 5], pa.int64()).cast(pa.timestamp("us")),
    "flag": pa.array([True, False, None, True, False, None, True]),
}


@pytest.mark.parametrize("name", VALUES)
def test_partition_values_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    values = VALUES[name]
    rows = pa.table({"id": list(range(len(values))), name: values})
    write_deltalake(tmp_path, rows, partition_by=[name])
    expected = {row["id"]: row[name] or (None if name == "text" else row[name]) for row in rows.to_pylist()}
    assert {row["id"]: row[name] for row in read(tmp_path).to_pylist()} == expected
    for value in set(expected.values()) - {None}:
        text = f"'{value}'" if not isinstance(value, int | Decimal) else str(value).lower()
        found = read(tmp_path, where=f"{name} = {text}", columns="id")["id"].to_pylist()
        assert sorted(found) == [number for number, one in expected.items() if one == value]
        skipped = reader.open_table("penstock.delta", path=str(tmp_path), where=f"{name} = {text}").files()
        assert len(list(skipped)) == 1
    nulls = [number for number, one in expected.items() if one is None]
    assert sorted(read(tmp_path, where=f"{name} IS NULL", columns="id")["id"].to_pylist()) == nulls
    assert read(tmp_path, where=f"{name} IS NOT NULL").num_rows == len(expected) - len(nulls)


def test_columns_that_a_file_does_not_have_are_null(tmp_path: Path) -> None:
    old = pa.table({"id": [1], "s": pa.array([{"a": 1}])})
    new = pa.table({"id": [2], "s": pa.array([{"a": 2, "b": [3]}]), "more": ["x"]})
    write_deltalake(tmp_path, old)
    write_deltalake(tmp_path, new, mode="append", schema_mode="merge")
    assert sorted(read(tmp_path).to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "s": {"a": 1, "b": None}, "more": None},
        {"id": 2, "s": {"a": 2, "b": [3]}, "more": "x"},
    ]
    assert read(tmp_path, where="more IS NULL", columns="id").to_pylist() == [{"id": 1}]
    assert read(tmp_path, where="more = 'x' AND s.a = 2", columns="MORE").to_pylist() == [{"more": "x"}]
    assert read(tmp_path, where="more IS NULL", columns="more").to_pylist() == [{"more": None}]


def test_nested_nulls_stay_null(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "l": pa.array([None, [], [None], [{"a": 1}]], pa.list_(pa.struct([("a", pa.int64())]))),
            "m": pa.array([None, [], [("k", None)], [("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([None, {"a": None}, {"a": 1}, None], pa.struct([("a", pa.int64())])),
        }
    )
    write_deltalake(tmp_path, rows)
    assert read(tmp_path).to_pylist() == rows.to_pylist()
    assert read(tmp_path, where="s.a IS NULL", columns="s").to_pylist() == [
        {"s": None},
        {"s": {"a": None}},
        {"s": None},
    ]


def test_a_file_with_nan_is_not_skipped(tmp_path: Path) -> None:
    """The log has no bounds that tell of NaN, and neither have the footers of Arrow's files."""
    write_deltalake(tmp_path, pa.table({"f": [1.0, math.nan]}))
    assert len(read(tmp_path, where="f > 5")) == 1
    assert len(read(tmp_path, where="f IS NAN")) == 1
    assert len(read(tmp_path, where="f <= 1")) == 1
    assert list(reader.open_table("penstock.delta", path=str(tmp_path), where="f < 1").files()) == []


def test_bounds_of_floats_are_not_taken_for_other_numbers(tmp_path: Path) -> None:
    """Some writers log 0.1 for the float 0.10000000149, which is more than 0.1."""
    write_deltalake(tmp_path, pa.table({"f": pa.array([0.1], pa.float32())}))
    entry = tmp_path / "_delta_log" / f"{0:020d}.json"
    content = entry.read_text()
    assert content.count("0.10000000149011612") == 2
    entry.write_text(content.replace("0.10000000149011612", "0.1"))
    assert read(tmp_path, where="f > 0.1").num_rows == 1
    assert read(tmp_path, where="f = 0.10000000149011612").num_rows == 1
    assert read(tmp_path, where="f = 0.1").num_rows == 0


def three_versions(path: Path) -> None:
    for number in range(3):
        write_deltalake(path, pa.table({"id": [number]}), mode="append")
        entry = path / "_delta_log" / f"{number:020d}.json"
        os.utime(entry, (1_000_000 + number * 100, 1_000_000 + number * 100))


def at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()


def test_earlier_versions_are_read(tmp_path: Path) -> None:
    three_versions(tmp_path)
    assert sorted(read(tmp_path, versionAsOf="1")["id"].to_pylist()) == [0, 1]
    assert sorted(read(tmp_path, timestampAsOf=at(1_000_150))["id"].to_pylist()) == [0, 1]
    assert sorted(read(tmp_path, timestampAsOf=at(1_000_100))["id"].to_pylist()) == [0, 1]
    assert sorted(read(tmp_path, timestampAsOf=at(time.time()))["id"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"versionAsOf": "9"}, "has no version 9"),
        ({"timestampAsOf": at(999_999)}, "has no version at 1970-01-12T13:46:39"),
        ({"versionAsOf": "1", "timestampAsOf": at(1_000_150)}, "versionAsOf and timestampAsOf are given"),
        ({"columns": "id, nothing"}, "'nothing' is not in version 2"),
        ({"wehre": "id = 1"}, "Did you mean where"),
        ({"mergeSchema": "true"}, "mergeSchema is not an option"),
    ],
)
def test_what_is_not_there_is_said(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    three_versions(tmp_path)
    with pytest.raises(ConfigurationError, match=problem):
        read(tmp_path, **options)


def test_a_missing_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="There is no Delta table"):
        read(tmp_path / "nothing")


def test_a_file_that_was_deleted_meanwhile_is_an_error(tmp_path: Path) -> None:
    three_versions(tmp_path)
    table = reader.open_table("penstock.delta", path=str(tmp_path))
    next(tmp_path.glob("*.parquet")).unlink()
    with pytest.raises(RetryableError, match="is missing: the table was changed"):
        table.to_reader().read_all()


def test_a_table_is_read_after_log_checkpoints(tmp_path: Path) -> None:
    three_versions(tmp_path)
    DeltaTable(tmp_path).create_checkpoint()
    write_deltalake(tmp_path, pa.table({"id": [3]}), mode="append")
    for entry in range(2):
        (tmp_path / "_delta_log" / f"{entry:020d}.json").unlink(missing_ok=True)
    assert sorted(read(tmp_path)["id"].to_pylist()) == pl.read_delta(str(tmp_path))["id"].sort().to_list()
    with pytest.raises(
        ConfigurationError, match="its log no longer has it: it has entries of the versions 2 to 3"
    ):
        read(tmp_path, versionAsOf="1")


def test_batches_are_small(tmp_path: Path) -> None:
    """Also of values that are short in the file, because all of them are the same."""
    rows = pa.table({"text": ["x" * 10_000] * 20_000})
    write_deltalake(tmp_path, rows)
    sizes = [batch.nbytes for batch in reader.read("penstock.delta", path=str(tmp_path))]
    assert sum(sizes) > 200_000_000
    assert max(sizes) < 20_000_000
