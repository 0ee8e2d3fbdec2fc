"""DuckLake tables are read as duckdb reads them, in each of their snapshots, or refused by name."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.ducklakes import DuckLake, sqlite_lake

from penstock import ConfigurationError, RetryableError, TableNotSupportedError, reader
from penstock.readers.ducklake.ranges import file_ranges
from penstock.readers.predicates import UNKNOWN


@pytest.fixture
def lake(tmp_path: Path) -> DuckLake:
    return sqlite_lake(tmp_path)


def options(lake: DuckLake, **more: str) -> dict[str, str]:
    return {"catalog": lake.catalog, "table": "events", **more}


def read(lake: DuckLake, **more: str) -> pa.Table:
    return reader.read("penstock.ducklake", options(lake), **more).read_all()


def ids(lake: DuckLake, **more: str) -> list[int]:
    return sorted(read(lake, columns="id", **more)["id"].to_pylist())


def in_any_order(rows: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, rows))


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


HISTORY = [
    "CREATE TABLE events (id BIGINT, s STRUCT(a INT, b VARCHAR[]), m MAP(VARCHAR, INT), part VARCHAR)",
    "INSERT INTO events SELECT range, {'a': range::INT, 'b': ['x', NULL]}, MAP {'k': 1}, 'p' || (range % 3) "
    "FROM range(1000)",
    "INSERT INTO events VALUES (5000, NULL, NULL, 'inlined'), (5001, {'a': NULL, 'b': NULL}, MAP {}, NULL)",
    "DELETE FROM events WHERE id = 5",
    "DELETE FROM events WHERE id < 3",
    "DELETE FROM events WHERE id BETWEEN 100 AND 400",
    "ALTER TABLE events ADD COLUMN more INT DEFAULT 7",
    "ALTER TABLE events ADD COLUMN s.c INT",
    "ALTER TABLE events RENAME part TO other",
    "INSERT INTO events SELECT range, {'a': 1, 'b': [], 'c': 9}, NULL, 'q', 1 FROM range(2000, 2100)",
    "COPY (SELECT 1::BIGINT AS id, 'x' AS other, 3::INT AS more, {'b': ['y'], 'a': 5} AS s, "
    "MAP {'z': 9} AS m) TO '{folder}/added.parquet'; "
    "CALL ducklake_add_data_files('lake', 'events', '{folder}/added.parquet', allow_missing => true)",
    "COPY (SELECT 2::BIGINT AS id, 'y' AS other) TO '{folder}/few.parquet'; "
    "CALL ducklake_add_data_files('lake', 'events', '{folder}/few.parquet', allow_missing => true)",
    "ALTER TABLE events ALTER COLUMN more TYPE BIGINT",
    "DELETE FROM events WHERE id IN (2050, 5000)",
    "UPDATE events SET more = 100000000000 WHERE id IN (10, 11, 2051)",
    "ALTER TABLE events DROP COLUMN m",
    "CALL ducklake_flush_inlined_data('lake')",
    "INSERT INTO events VALUES (6000, {'a': 1, 'b': ['x'], 'c': NULL}, 'r', 3)",
    "CALL ducklake_merge_adjacent_files('lake')",
    "DELETE FROM events WHERE id = 6000 OR id = 2",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)",
    "UPDATE events SET other = 'last' WHERE id % 100 = 1",
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
]


def check_snapshots(lake: DuckLake, snapshots: Iterable[int]) -> None:
    for snapshot in snapshots:
        expected = map(_plain, lake.sql(f"FROM events AT (VERSION => {snapshot})"))
        found = rows_of(read(lake, versionAsOf=str(snapshot)))
        assert in_any_order(found) == in_any_order(list(expected)), snapshot


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.campaign)])
def test_each_snapshot_is_read_as_duckdb_reads_it(lake: DuckLake, step: int) -> None:
    """Also with rows and deletions in the catalog, and before and after files are merged."""
    waiting: list[str] = []
    for statements in HISTORY:
        if statements.startswith("CALL"):
            lake.sql(*waiting)
            check_snapshots(lake, [_newest(lake)])
            waiting = []
        waiting += statements.replace("{folder}", str(lake.folder)).split("; ")
    lake.sql(*waiting)
    newest = _newest(lake)
    assert newest > 20
    check_snapshots(lake, range(newest, 0, -step))
    for where in ("id = 2051", "more >= 7 AND other = 'q'", "other IS NULL", "s.a = 1", "id < 12"):
        expected = lake.sql(f"SELECT id FROM events WHERE {where} ORDER BY id")
        assert ids(lake, where=where) == [row for (row,) in expected], where


def _newest(lake: DuckLake) -> int:
    ((newest,),) = lake.sql("FROM ducklake_current_snapshot('lake')")
    return int(newest)


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    """Maps as Arrow gives them."""
    return tuple(
        list(one.items()) if isinstance(one, dict) and one.keys() <= {"k", "z"} else one for one in row
    )


TYPES = {
    "flag": "true",
    "i8 TINYINT": "-128",
    "i16 SMALLINT": "-32768",
    "i32 INTEGER": "-2147483648",
    "i64 BIGINT": "-9223372036854775808",
    "u8 UTINYINT": "255",
    "u16 USMALLINT": "65535",
    "u32 UINTEGER": "4294967295",
    "u64 UBIGINT": "18446744073709551615",
    "f4 FLOAT": "'nan'::FLOAT",
    "f8 DOUBLE": "'-0.0'::DOUBLE",
    "price DECIMAL(38, 10)": "-1.5",
    "small DECIMAL(4, 2)": "12.34",
    "text VARCHAR": "'it''s é'",
    "bin BLOB": "'\\x00\\xFF'::BLOB",
    "day DATE": "'0001-01-01'",
    "ntz TIMESTAMP": "'1969-12-31 23:59:59.999999'",
    "ts TIMESTAMPTZ": "'2026-11-29 10:00:00.5+01'",
    "seconds TIMESTAMP_S": "'2026-11-29 10:00:00'",
    "nanos TIMESTAMP_NS": "'2026-11-29 10:00:00.123456'",
    "u UUID": "'12345678-1234-5678-1234-567812345678'",
    "j JSON": "'{\"a\": [1]}'",
    "nested STRUCT(l STRUCT(x UUID)[], m MAP(INT, DECIMAL(9, 2)))": "{'l': [{'x': NULL}], 'm': MAP {1: 2.5}}",
}


@pytest.mark.parametrize("rows", [1, 100], ids=["in the catalog", "in a file"])
def test_all_types_are_read_as_they_were_written(lake: DuckLake, rows: int) -> None:
    columns = ", ".join(name if " " in name else f"{name} BOOLEAN" for name in TYPES)
    values, nulls = ", ".join(TYPES.values()), ", ".join(["NULL"] * len(TYPES))
    lake.sql(
        f"CREATE TABLE events ({columns})",
        f"INSERT INTO events SELECT {values} FROM range({rows}) UNION ALL SELECT {nulls}",
    )
    found = read(lake)
    expected = {
        "flag": True,
        **{name: -(2 ** (int(name[1:]) - 1)) for name in ("i8", "i16", "i32", "i64")},
        **{name: 2 ** int(name[1:]) - 1 for name in ("u8", "u16", "u32", "u64")},
        "f8": -0.0,
        "price": Decimal("-1.5"),
        "small": Decimal("12.34"),
        "text": "it's é",
        "bin": b"\x00\xff",
        "day": dt.date(1, 1, 1),
        "ntz": dt.datetime.fromisoformat("1969-12-31T23:59:59.999999"),
        "ts": dt.datetime.fromisoformat("2026-11-29T09:00:00.500000+00:00"),
        "seconds": dt.datetime.fromisoformat("2026-11-29T10:00:00"),
        "u": "12345678-1234-5678-1234-567812345678",
        "j": '{"a": [1]}',
        "nested": {"l": [{"x": None}], "m": [(1, Decimal("2.5"))]},
    }
    assert found.num_rows == rows + 1
    (first,) = found.slice(0, 1).to_pylist()
    assert {name: first[name] for name in expected} == expected
    assert repr(first["f8"]) == "-0.0"
    assert repr(first["f4"]) == "nan"
    assert set(found.slice(rows, 1).to_pylist()[0].values()) == {None}
    matching = (
        "f4 IS NAN AND f4 > 5 AND ts = '2026-11-29T09:00:00.5Z' AND day < '0001-01-02' AND price = -1.5",
        "f4 < 5 OR ts > '2026-11-29T09:00:00.5Z' OR text > 'j' OR flag = false OR ntz >= '1970-01-01'",
    )
    assert [read(lake, where=where, columns="text").num_rows for where in matching] == [rows, 0]


def test_default_values_of_new_columns_are_read(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)", "INSERT INTO events SELECT range FROM range(50)")
    defaults = {
        "a VARCHAR": "'x'",
        "b DATE": "'2026-01-01'",
        "c DOUBLE": "1.5",
        "d DECIMAL(9, 2)": "2.5",
        "e TIMESTAMP": "'2026-01-01 10:00:00.5'",
        "f BOOLEAN": "'true'",
        "g BLOB": "'x'",
    }
    lake.sql(*[f"ALTER TABLE events ADD COLUMN {name} DEFAULT {value}" for name, value in defaults.items()])
    lake.sql("INSERT INTO events (id, a) SELECT range, NULL FROM range(100, 150)")
    assert in_any_order(rows_of(read(lake))) == in_any_order(lake.sql("FROM events"))
    assert len(ids(lake, where="a = 'x' AND b = '2026-01-01' AND f = true")) == 50
    lake.sql("ALTER TABLE events ADD COLUMN h BLOB DEFAULT '\\x00'")
    assert len(ids(lake)) == 100
    with pytest.raises(TableNotSupportedError, match="of the column 'h', which cannot be read as binary"):
        read(lake)


def test_files_of_other_engines_are_read_by_the_names_of_their_columns(
    lake: DuckLake, tmp_path: Path
) -> None:
    """Also if they have field ids, which are those of another table, or folders with values."""
    lake.sql("CREATE TABLE events (id BIGINT, text VARCHAR, l VARCHAR[], part VARCHAR)")
    ids_of_others = {b"PARQUET:field_id": b"2"}
    schema = pa.schema(
        [
            pa.field("text", pa.string(), metadata={b"PARQUET:field_id": b"1"}),
            pa.field("id", pa.int64(), metadata=ids_of_others),
            pa.field("l", pa.list_(pa.field("array", pa.string()))),
        ]
    )
    folder = tmp_path / "part=a%2Fb"
    folder.mkdir()
    rows = pa.table({"text": ["x", "y"], "id": [1, 2], "l": [["a"], None]}, schema=schema)
    pq.write_table(rows, folder / "f.parquet", row_group_size=1)
    lake.sql(
        f"CALL ducklake_add_data_files('lake', 'events', '{folder}/f.parquet', hive_partitioning => true)"
    )
    assert in_any_order(rows_of(read(lake))) == in_any_order(lake.sql("FROM events"))
    lake.sql(
        "ALTER TABLE events RENAME text TO t2", "ALTER TABLE events ADD COLUMN text VARCHAR DEFAULT 'new'"
    )
    assert in_any_order(rows_of(read(lake))) == in_any_order(lake.sql("FROM events"))
    assert ids(lake, where="text = 'new' AND part = 'a/b'") == [1, 2]
    assert ids(lake, where="t2 = 'y'") == [2]


def test_files_are_skipped_by_the_bounds_of_the_catalog(lake: DuckLake) -> None:
    lake.sql(
        "CREATE TABLE events (id BIGINT, text VARCHAR, ts TIMESTAMPTZ)",
        *[
            f"INSERT INTO events SELECT range, 'text ' || range, make_timestamptz(range * 1000000) "
            f"FROM range({first}, {first + 100})"
            for first in (1000, 2000, 3000)
        ],
        "INSERT INTO events SELECT NULL, NULL, NULL FROM range(50)",
    )
    for where, count in {
        "id = 2005": 1,
        "id < 2005": 2,
        "text = 'text 3005'": 1,
        "ts >= '1970-01-01T00:50:00Z'": 1,
        "id IS NULL": 1,
        "id IS NOT NULL": 3,
    }.items():
        files = list(reader.open_table("penstock.ducklake", options(lake), where=where).files())
        assert len(files) == count, where
        assert [(read(lake, where=where).num_rows,)] == lake.sql(f"SELECT count(*) FROM events WHERE {where}")


def test_bounds_that_are_cut_off_or_not_numbers_skip_nothing() -> None:
    types = pa.schema(
        [("s", pa.string()), ("f", pa.float64()), ("g", pa.float32()), ("ts", pa.timestamp("us"))]
    )
    stats = {
        "s": (0, "ab", "cd"),
        "f": (0, "nan", "inf"),
        "g": (0, "0.1", "0.1"),
        "ts": (None, "infinity", "2026-01-01 10:00:00"),
    }
    known = file_ranges(stats, 5, types)
    assert known(("s",)).low == "ab"
    assert known(("s",)).high > "cdefgh"
    assert (known(("f",)).low, known(("f",)).may_be_nan) == (None, True)
    assert (known(("g",)).low, known(("g",)).high) == (None, None)
    assert (known(("ts",)).low, known(("ts",)).may_be_null) == (None, True)
    assert known(("ts",)).high is not None
    assert known(("other",)) == UNKNOWN


def test_rows_of_the_catalog_are_in_one_part_each(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)", "INSERT INTO events SELECT range FROM range(9)")
    table = reader.open_table("penstock.ducklake", options(lake))
    (file,) = table.files()
    cuts = [0, 7, 30, file.size_bytes]
    parts = [replace(file, start=start, end=end) for start, end in itertools.pairwise(cuts)]
    found = [row for part in parts for batch in table.scan().read([part]) for row in batch["id"].to_pylist()]
    assert found == list(range(9))


def test_snapshots_of_a_time_are_read(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)")
    for number in range(3):
        lake.sql(f"INSERT INTO events VALUES ({number})")
    snapshots = lake.sql("SELECT snapshot_id, snapshot_time FROM lake.snapshots() ORDER BY ALL")
    for number, time in snapshots[1:]:
        found = ids(lake, timestampAsOf=time.astimezone(dt.timezone.utc).isoformat())
        assert found == list(range(number - 1))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"versionAsOf": "9"}, r"has no snapshot 9, or it has expired. It has the snapshots 0 to 1"),
        ({"timestampAsOf": "1999-01-01"}, "has no snapshot at 1999-01-01T00:00:00"),
        ({"versionAsOf": "0"}, "There is no DuckLake table .* in snapshot 0"),
        ({"versionAsOf": "1", "timestampAsOf": "1999-01-01"}, "versionAsOf and timestampAsOf are given"),
        ({"table": "none"}, "There is no DuckLake table"),
        ({"catalog": "sqlite:/nowhere/c.sqlite"}, "There is no DuckLake for"),
        ({"columns": "nothing"}, "'nothing' is not in snapshot 1 of the DuckLake table"),
        ({"path": "/lake"}, "path is not an option"),
    ],
)
def test_what_is_not_there_is_said(lake: DuckLake, more: dict[str, str], problem: str) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)")
    with pytest.raises(ConfigurationError, match=problem):
        reader.read("penstock.ducklake", {**options(lake), **more})


REFUSED = {
    "INTERVAL": "is interval",
    "TIME": "is time",
    "HUGEINT": "is int128",
    "STRUCT(x TIME)": "'bad.x' is time",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_column_that_cannot_be_read_is_refused_by_name(lake: DuckLake, kind: str) -> None:
    lake.sql(f"CREATE TABLE events (id BIGINT, bad {kind})", "INSERT INTO events VALUES (1, NULL)")
    with pytest.raises(
        TableNotSupportedError, match=f"{REFUSED[kind]}, which Penstock does not read. Nothing"
    ):
        read(lake)
    assert ids(lake, where="id = 1") == [1]


def test_rows_of_the_catalog_need_the_name_of_their_file(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT, filename VARCHAR)", "INSERT INTO events VALUES (1, 'x')")
    with pytest.raises(TableNotSupportedError, match="has a column 'filename'"):
        read(lake)
    lake.sql("CALL ducklake_flush_inlined_data('lake')")
    assert read(lake).to_pylist() == [{"id": 1, "filename": "x"}]


def test_a_snapshot_that_expired_meanwhile_is_an_error(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)", "INSERT INTO events VALUES (1)")
    table = reader.open_table("penstock.ducklake", options(lake))
    lake.sql("INSERT INTO events VALUES (2)", "CALL ducklake_expire_snapshots('lake', older_than => now())")
    with pytest.raises(RetryableError, match="has expired since the query was planned"):
        list(table.files())


def test_a_table_that_changes_meanwhile_stays_as_it_was(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)", "INSERT INTO events SELECT range FROM range(100)")
    table = reader.open_table("penstock.ducklake", options(lake))
    lake.sql("DELETE FROM events WHERE id > 5", "INSERT INTO events VALUES (7000)", "DROP TABLE events")
    assert Counter(table.to_reader().read_all()["id"].to_pylist()) == Counter(range(100))


def test_nothing_of_the_catalog_goes_to_tasks(lake: DuckLake) -> None:
    lake.sql("CREATE TABLE events (id BIGINT)")
    table = reader.open_table("penstock.ducklake", options(lake))
    assert "catalog.sqlite" not in repr(table.scan()).replace(table.reader.name, "")


def test_encrypted_lakes_are_refused(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        from penstock.testing.duckdb_reader import load_extensions

        load_extensions(connection, "sqlite-scanner", "ducklake")
        source = f"ducklake:sqlite:{tmp_path}/catalog.sqlite"
        connection.execute(f"ATTACH '{source}' AS lake (DATA_PATH '{tmp_path}/data/', ENCRYPTED)")
        connection.execute("CREATE TABLE lake.events (id BIGINT)")
    with pytest.raises(TableNotSupportedError, match="encryption: Penstock does not read encrypted files"):
        read(sqlite_lake(tmp_path))
