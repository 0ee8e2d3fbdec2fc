"""Values in MySQL tables, with a real server: each comes back as it was, or is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from servers.mysql import MariaDB, MySqlProcess, running
from tests.support.mysql import MySqlQuery, new_query

from penstock.committers.errors import SchemaMismatchError
from penstock.committers.mysql.types import holds, is_staged_as, normalized, sql_type
from penstock.committers.store.sql import SqlManifestStore

UTC = timezone.utc
TEXTS = [
    "", " ", "a\tb", "\\", "\\N", "\\n", "N", "NULL", "'", '"', "''", "\n", "\r\n", "\0", "x\0", "\x1a",
    "€", "🙂", "a,b", "tail  ", "%s", "{}", None,
]  # fmt: skip
INSTANTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    None,
]
TIMES = [instant and instant.replace(tzinfo=None) for instant in INSTANTS]
NUMBERS = [Decimal("-0.0000000001"), Decimal(10**27) + Decimal("0.5"), None]
VALUES: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.bool_(), "tinyint(1)", [True, False, None]),
    (pa.int8(), "tinyint", [-128, 127, None]),
    (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    (pa.int32(), "int", [-(2**31), 2**31 - 1, None]),
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1, 0, None]),
    (pa.float64(), "double", [0.1, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 1 / 3, None]),
    (
        pa.decimal128(38, 10),
        "decimal(38,10)",
        [Decimal("-0.0000000001"), Decimal(10**27) + Decimal("0.5"), None],
    ),
    (pa.string(), "longtext", TEXTS),
    (pa.binary(), "longblob", [b"", b"\x00\xff\\x", b"abc\t\n'", None]),
    (pa.date32(), "date", [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31), None]),
    (pa.timestamp("us", "UTC"), "datetime(6)", INSTANTS),
    (pa.timestamp("us"), "datetime(6)", TIMES),
]


@pytest.fixture(scope="module")
def without_local() -> Iterator[MySqlProcess]:
    """A server that does not allow LOAD DATA LOCAL, as MySQL 8 by default; it takes only small packets."""
    with running(MariaDB, "--local-infile=0", "--max-allowed-packet=1M") as server:
        yield server


ORACLE = pytest.param("oracle_mysql_server", marks=pytest.mark.campaign)


@pytest.fixture(params=["mariadb_server", "without_local", ORACLE])
def query_of_any(request: pytest.FixtureRequest) -> MySqlQuery:
    """Its rows are loaded or inserted."""
    return new_query(request.getfixturevalue(request.param))


@pytest.fixture
def query(mysql_server: MySqlProcess) -> MySqlQuery:
    return new_query(mysql_server)


@pytest.mark.parametrize(("kind", "column", "values"), VALUES, ids=[str(kind) for kind, *_ in VALUES])
def test_every_value_comes_back_as_it_was(
    query_of_any: MySqlQuery, store: SqlManifestStore, kind: pa.DataType, column: str, values: list[Any]
) -> None:
    query = query_of_any
    rows = pa.table({"n": pa.array(range(len(values)), pa.int64()), "The col": pa.array(values, kind)})
    query.run(store, query.batch(0), rows.slice(1), rows.slice(0, 1))

    ((found,),) = query.sql(
        "SELECT column_type FROM information_schema.columns WHERE column_name = 'The col' "
        "AND table_schema = database() AND table_name = 'events'"
    )
    assert normalized(found) == column
    back = [row[0] for row in query.sql("SELECT `The col` FROM events ORDER BY n")]
    if pa.types.is_boolean(kind):
        back = [None if value is None else bool(value) for value in back]
    if pa.types.is_timestamp(kind) and kind.tz:
        back = [value and value.replace(tzinfo=UTC) for value in back]
    assert back == values


def test_floats_are_the_same_numbers(query: MySqlQuery, store: SqlManifestStore) -> None:
    """MySQL shows six digits of a float, so the numbers are compared as doubles."""
    numbers = [0.1, 3.4028234663852886e38, -3.4028234663852886e38, 1e-38, 1 / 3, None]
    values = pa.array(numbers, pa.float32())
    query.run(store, query.batch(0), pa.table({"n": pa.array(range(6), pa.int64()), "f": values}))

    back = [row[0] for row in query.sql("SELECT CAST(f AS double) FROM events ORDER BY n")]
    assert back == values.to_pylist()


def test_texts_of_a_single_column_come_back(query: MySqlQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), pa.table({"s": pa.array(TEXTS, pa.string())}))
    assert query.sql("SELECT s FROM events") == [(text,) for text in TEXTS]


def test_values_of_many_rows_come_back(query_of_any: MySqlQuery, store: SqlManifestStore) -> None:
    """Sums and hashes over all rows, in the server and in duckdb."""
    import duckdb

    query = query_of_any
    rows = duckdb.sql(
        "SELECT i AS id, md5(i::varchar) AS s, (i * 7919 % 10007)::double / 1000 AS d, "
        "CASE WHEN i % 3 > 0 THEN make_timestamp(i * 1000003 + 1) END AS t FROM range(50000) r(i)"
    ).to_arrow_table()
    query.run(store, query.batch(0), rows.slice(0, 30_001), rows.slice(30_001))

    found = query.sql(
        "SELECT count(*), sum(id), sum(crc32(s)), round(sum(d * 1000)), "
        "sum(timestampdiff(microsecond, '1970-01-01', t)) FROM events"
    )
    hashes = sum(_crc(text) for text in rows["s"].to_pylist())
    ((count, ids, numbers, times),) = duckdb.sql(
        "SELECT count(*), sum(id), round(sum(d * 1000)), sum(epoch_us(t)) FROM rows"
    ).fetchall()
    assert [int(value) for value in found[0]] == [count, ids, hashes, int(numbers), times]


def _crc(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


def test_a_text_beyond_the_packets_of_the_server_comes_back(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    text = "x" * (20 * 1024 * 1024)
    query.run(store, query.batch(0), pa.table({"s": [text, "small"]}))
    assert query.sql("SELECT max(length(s)), count(*) FROM events") == [(len(text), 2)]


def test_a_row_that_no_packet_takes_is_an_error(without_local: MySqlProcess, store: SqlManifestStore) -> None:
    query = new_query(without_local)
    with pytest.raises(Exception, match=r"max_allowed_packet|gone away|packet bigger"):
        query.run(store, query.batch(0), pa.table({"s": ["x" * (2 * 1024 * 1024)]}))
    assert query.table.tables() in (["events", "penstock_fence", "penstock_refused"], [])


REFUSED = [
    ("n smallint unsigned", pa.int16(), -1, "error 1264"),
    ("n varchar(3)", pa.string(), "four", "does not fit the column n"),
    ("n varchar(3)", pa.string(), "abc   ", "does not fit the column n"),
    ("n tinytext", pa.string(), "ä" * 200, "does not fit the column n"),
    ("n double", pa.float64(), math.nan, "NaN or infinite"),
    ("n double", pa.float64(), -math.inf, "NaN or infinite"),
    ("n int unsigned", pa.int32(), -1, "error 1264"),
    ("n timestamp(6)", pa.timestamp("us", "UTC"), datetime(2050, 1, 1, tzinfo=UTC), "error 1292"),
    ("n json", pa.string(), "{", "error 4025|error 3140"),
    ("n varchar(9) CHARACTER SET latin1", pa.string(), "Ω", "error 1366"),
    ("n int CHECK (n > 5)", pa.int32(), 1, "error 4025|error 3819"),
]


@pytest.mark.parametrize(
    ("column", "kind", "value", "said"), REFUSED, ids=[f"{one[0]} {one[2]!r:.9}" for one in REFUSED]
)
def test_a_value_that_does_not_fit_is_refused_and_not_changed(
    query: MySqlQuery, store: SqlManifestStore, column: str, kind: pa.DataType, value: Any, said: str
) -> None:
    """MySQL would cut it or take the nearest one, with a warning."""
    query.sql(f"CREATE TABLE events ({column})")
    with pytest.raises(SchemaMismatchError, match=said):
        query.run(store, query.batch(0), pa.table({"n": pa.array([value], kind)}))
    assert query.sql("SELECT * FROM events") == []


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("char(9)", pa.string()), ("enum('a')", pa.string()), ("int", pa.int64()), ("float", pa.float64()),
        ("datetime", pa.timestamp("us")), ("datetime(3)", pa.timestamp("us")), ("timestamp(6)",
        pa.timestamp("us")), ("decimal(9,2)", pa.decimal128(9, 3)), ("text", pa.binary()), ("bit(1)",
        pa.bool_()), ("year", pa.int16()), ("time(6)", pa.timestamp("us")),
    ],
)  # fmt: skip
def test_a_column_that_would_change_values_is_refused(
    query: MySqlQuery, store: SqlManifestStore, column: str, kind: pa.DataType
) -> None:
    query.sql(f"CREATE TABLE events (n {column})")
    with pytest.raises(SchemaMismatchError, match="cannot store"):
        query.run(store, query.batch(0), pa.table({"n": pa.array([None], kind)}))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.decimal128(38, 31), pa.duration("us")]
)
def test_a_type_without_a_column_is_refused(
    query: MySqlQuery, store: SqlManifestStore, kind: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatchError, match="which MySQL cannot store"):
        query.run(store, query.batch(0), pa.table({"n": pa.array([], kind)}))


def test_the_settings_of_the_server_change_no_value(store: SqlManifestStore) -> None:
    options = ("--sql-mode=", "--default-time-zone=+09:00", "--character-set-server=latin1", "--autocommit=0")
    with running(MariaDB, *options) as server:
        query, instant = new_query(server), datetime(2020, 3, 29, 2, 30, tzinfo=UTC)
        rows = pa.table(
            {
                "s": ["€🙂"],
                "t": pa.array([instant], pa.timestamp("us", "UTC")),
            }
        )
        query.run(store, query.batch(0), rows)
        assert query.sql("SELECT s, t FROM events") == [("€🙂", instant.replace(tzinfo=None))]
        other = new_query(server)
        other.sql("CREATE TABLE events (n tinyint unsigned)")
        with pytest.raises(SchemaMismatchError, match="error 1264"):
            other.run(store, other.batch(0), pa.table({"n": pa.array([-1], pa.int8())}))


def test_a_manifest_may_name_every_type_that_a_column_may_have_and_no_other() -> None:
    kinds = {str(sql_type(kind)) for kind, *_ in VALUES} | {
        "int unsigned",
        "varchar(9)",
        "timestamp(6)",
        "json",
    }
    assert all(map(is_staged_as, kinds))
    for other in ("int); DROP TABLE t; --", "char(9)", "enum('a')", "varchar(x)", ""):
        assert not is_staged_as(other)
    assert not holds("int", pa.int64())


def test_display_widths_are_no_other_types() -> None:
    given = [
        "int(11)",
        "bigint(20) unsigned",
        "tinyint(1)",
        "tinyint(4)",
        "decimal(9,2)",
        "INT(10) UNSIGNED ZEROFILL",
    ]
    assert [normalized(one) for one in given] == [
        "int", "bigint unsigned", "tinyint(1)", "tinyint", "decimal(9,2)", "int unsigned"
    ]  # fmt: skip
