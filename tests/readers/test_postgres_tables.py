"""Postgres tables are read with the rows that were written, or refused by name, while they are written."""

from __future__ import annotations

import math
import pickle
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest
from tests.support.conditions import COLUMNS, condition, rows_of
from tests.support.lakes import ids
from tests.support.postgres import PostgresQuery, PostgresTable, query_into

from penstock import ConfigurationError, PenstockError, RetryableError, TableNotSupportedError, reader
from penstock.committers.database.fence import Fence
from penstock.committers.postgres.dialect import DIALECT
from penstock.committers.store.sql import SqlManifestStore
from penstock.readers.postgres import scan, table
from penstock.readers.postgres.filters import postgres_filter
from penstock.readers.postgres.types import PostgresColumn
from penstock.readers.table import TableScan
from penstock.readers.where import parse_where

UTC = timezone.utc
NAN = math.nan
MOMENTS = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(9999, 12, 31, 1, 2, 3, 4)]  # noqa: DTZ001
TEXTS = ["", "NULL", '"', "a,b", "a\nb", "\r\n", "\\.", "\\N", " x ", "it's", "é\U0001f600", "{}", None]
WRITTEN: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), TEXTS),
    "flag": (pa.bool_(), [True, False, None]),
    "i8": (pa.int8(), [-128, None, 127]),
    "i16": (pa.int16(), [-(2**15), None]),
    "i32": (pa.int32(), [-(2**31), None]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "f4": (pa.float32(), [-math.inf, -0.0, 0.1, 1e-45, NAN, None]),
    "f8": (pa.float64(), [math.inf, -0.0, 0.1, 5e-324, 1.7976931348623157e308, NAN, None]),
    "price": (pa.decimal128(38, 10), [Decimal("-1.5"), Decimal("9" * 28), None]),
    "bin": (pa.binary(), [b"", b"\x00'\\", bytes(range(256)), None]),
    "day": (pa.date32(), [*(moment.date() for moment in MOMENTS), None]),
    "ntz": (pa.timestamp("us"), [*MOMENTS, None]),
    "ts": (pa.timestamp("us", "UTC"), [*(moment.replace(tzinfo=UTC) for moment in MOMENTS), None]),
    "texts": (pa.list_(pa.string()), [TEXTS, [], None]),
    "flags": (pa.list_(pa.bool_()), [[True, None, False], None]),
    "numbers": (pa.list_(pa.int64()), [[-(2**63), None], [], None]),
    "floats": (pa.list_(pa.float64()), [[-math.inf, NAN, -0.0, None], None]),
    "prices": (pa.list_(pa.decimal128(9, 2)), [[Decimal("-1.50"), None], None]),
    "bins": (pa.list_(pa.binary()), [[b"", b"\x00'\\", None], None]),
    "days": (pa.list_(pa.date32()), [[MOMENTS[0].date(), None], None]),
    "times": (pa.list_(pa.timestamp("us", "UTC")), [[MOMENTS[1].replace(tzinfo=UTC), None], None]),
}


@pytest.fixture
def query(new_postgres_url: Callable[[], str]) -> PostgresQuery:
    return query_into(new_postgres_url())


@pytest.fixture
def events(query: PostgresQuery) -> PostgresTable:
    return query.table


def opened(table: PostgresTable, **options: str) -> TableScan:
    return reader.open_table("penstock.postgres", {**table.options, **options})


def rows(table: PostgresTable, **options: str) -> list[tuple[Any, ...]]:
    found = opened(table, **options).to_reader().read_all()
    return [tuple(row.values()) for row in found.to_pylist()]


def numbers(table: PostgresTable, **options: str) -> list[int]:
    return sorted(row[0] for row in rows(table, columns="id", **options))


# Values ---------------------------------------------------------------------------------------------------


def written_rows() -> pa.Table:
    count = max(len(values) for _, values in WRITTEN.values())
    return pa.table(
        {
            name: pa.array([values[row % len(values)] for row in range(count)], kind)
            for name, (kind, values) in WRITTEN.items()
        }
    )


def test_what_penstock_has_written_is_read_as_psycopg_reads_it(
    query: PostgresQuery, store: SqlManifestStore, events: PostgresTable
) -> None:
    written = written_rows()
    query.run(store, query.batch(0), written)
    found = opened(events).to_reader().read_all()
    types = {field.name: field.type for field in written.schema}
    assert {field.name: field.type for field in found.schema} == {**types, "i8": pa.int16()}
    assert repr(found.to_pylist()) == repr(written.to_pylist())
    with psycopg.connect(events.url.replace("+psycopg", "")) as connection:
        connection.execute("SET timezone = 'UTC'")
        names = ", ".join(f"{name}::float8" if name == "f4" else name for name in WRITTEN)
        seen = connection.execute(f"SELECT {names} FROM events ORDER BY ctid").fetchall()
    values = [tuple(row.values()) for row in found.cast(_without_zones(found.schema)).to_pylist()]
    assert repr([tuple(map(_plain, row)) for row in seen]) == repr(
        [tuple(map(_plain, row)) for row in values]
    )


def _without_zones(schema: pa.Schema) -> pa.Schema:
    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind):
            return pa.list_(plain(kind.value_type))
        return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind

    return pa.schema([pa.field(field.name, plain(field.type), field.nullable) for field in schema])


def _plain(value: Any) -> Any:
    """Times without their zone, and numbers that psycopg reads as other types, alike."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return value.normalize() if isinstance(value, Decimal) else value


def test_settings_of_the_user_do_not_change_values(
    query: PostgresQuery, store: SqlManifestStore, events: PostgresTable
) -> None:
    written = written_rows()
    query.run(store, query.batch(0), written)
    settings = "datestyle=SQL,DMY bytea_output=escape extra_float_digits=-10 timezone=Asia/Kolkata"
    url = events.url + quote("".join(f" -c{one}" for one in settings.split()))
    found = reader.read("penstock.postgres", url=url, dbtable=f"{events.schema}.events").read_all()
    assert repr(found.to_pylist()) == repr(written.to_pylist())


OTHER_TYPES = {
    "varchar(3)": ("'abc'", pa.string(), "abc"),
    "char(3)": ("'a'", pa.string(), "a  "),
    '"char"': ("'a'", pa.string(), "a"),
    "name": ("'a'", pa.string(), "a"),
    "uuid": ("'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ("'{\"a\":  1}'", pa.string(), '{"a":  1}'),
    "jsonb": ("'{\"a\":  1}'", pa.string(), '{"a": 1}'),
    "inet": ("'10.0.0.1'", pa.string(), "10.0.0.1"),
    "interval": ("'1 day 2 hours'", pa.string(), "1 day 02:00:00"),
    "timestamp(3)": (
        "'2026-11-29 10:00:00.1234'",
        pa.timestamp("us"),
        datetime(2026, 11, 29, 10, 0, 0, 123000),  # noqa: DTZ001
    ),
    "numeric": ("1.50000000000000000000", pa.decimal128(38, 18), Decimal("1.5")),
    "numeric[]": (
        "'{12345678901234567890.123456789012345678}'",
        pa.list_(pa.decimal128(38, 18)),
        [Decimal("12345678901234567890.123456789012345678")],
    ),
    "numeric(5,-2)": ("12345", pa.decimal128(7, 0), Decimal(12300)),
    "numeric(2,4)": ("0.0012", pa.decimal128(4, 4), Decimal("0.0012")),
    "mood": ("'sad'", pa.string(), "sad"),
    "mood[]": ("'{sad}'", pa.list_(pa.string()), ["sad"]),
    "price": ("1.5", pa.decimal128(9, 2), Decimal("1.50")),
    "special_price": ("1.5", pa.decimal128(9, 2), Decimal("1.50")),
    "uuid[]": (
        "'{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'",
        pa.list_(pa.string()),
        ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    ),
}


def test_types_that_penstock_does_not_write_are_read(events: PostgresTable) -> None:
    events.sql("CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN price AS numeric(9,2)")
    events.sql("CREATE DOMAIN special_price AS price")
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(OTHER_TYPES))
    values = ", ".join(value for value, _, _ in OTHER_TYPES.values())
    events.sql(f"CREATE TABLE events ({columns})")
    events.sql(f"INSERT INTO events VALUES ({values})")
    events.sql("INSERT INTO events DEFAULT VALUES")
    found = opened(events).to_reader().read_all()
    assert found.schema.types == [kind for _, kind, _ in OTHER_TYPES.values()]
    first, second = found.to_pylist()
    assert list(first.values()) == [value for _, _, value in OTHER_TYPES.values()]
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    "kind",
    ["time", "timetz", "point", "tsvector", "int4range", "bit(3)", "money", "numeric(39,2)", "price[]"],
)
def test_a_type_that_cannot_be_read_is_refused_by_name(events: PostgresTable, kind: str) -> None:
    events.sql("CREATE DOMAIN price AS numeric(9,2)")
    events.sql(f"CREATE TABLE events (id bigint, it {kind})")
    events.sql("INSERT INTO events VALUES (1, NULL)")
    with pytest.raises(
        TableNotSupportedError, match=r"the column 'it' is .*in the option columns, or read a view"
    ):
        rows(events)
    assert rows(events, columns="id", where="id = 1") == [(1,)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamptz", "infinity"),
        ("timestamp", "-infinity"),
        ("timestamp", "10000-01-01"),
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("numeric(5,2)", "NaN"),
        ("numeric", "Infinity"),
        ("numeric", "0.1234567890123456789"),
        ("numeric", "-123456789012345678901"),
        ("numeric[]", "{1,999999999999999999999999999999999999999}"),
        ("int[]", "{{4711,2},{3,4}}"),
        ("int[]", "[2:3]={4711,2}"),
        ("timestamptz[]", "{2026-11-29,infinity}"),
    ],
)
def test_a_value_that_arrow_does_not_have_is_an_error_with_the_column(
    events: PostgresTable, kind: str, value: str
) -> None:
    events.sql(f"CREATE TABLE events (id bigint, it {kind}, more text)")
    events.sql("INSERT INTO events VALUES (1, NULL, 'x'), (2, %s, 'y')", value)
    with pytest.raises(PenstockError, match="a value in the column 'it' that cannot be read") as refused:
        rows(events)
    shown = str(refused.value).replace(events.schema, "")
    assert not any(digits in shown for digits in re.findall(r"\d{4,}", value) if digits != "9999")
    assert rows(events, where="id = 1") == [(1, None, "x")]


def test_null_alone_in_a_row_is_read(events: PostgresTable) -> None:
    events.sql("CREATE TABLE events (it text)")
    assert rows(events) == []
    events.sql("INSERT INTO events VALUES (NULL), (''), (NULL)")
    assert rows(events) == [(None,), ("",), (None,)]
    empty = opened(events)
    assert sum(batch.num_rows for batch in empty.reader.scan([], pa.schema([])).read(empty.files())) == 3


def test_only_columns_that_certainly_have_no_null_are_not_nullable(events: PostgresTable) -> None:
    events.sql("CREATE TABLE events (id bigint PRIMARY KEY, it bigint NOT NULL, late bigint)")
    events.sql("INSERT INTO events VALUES (1, 1, NULL)")
    events.sql("ALTER TABLE events ADD CONSTRAINT later NOT NULL late NOT VALID")
    assert [field.nullable for field in opened(events).schema] == [False, False, True]
    events.sql("CREATE VIEW seen AS SELECT id FROM events")
    seen = reader.open_table("penstock.postgres", url=events.url, dbtable=f"{events.schema}.seen")
    assert [field.nullable for field in seen.schema] == [True]


# Conditions -----------------------------------------------------------------------------------------------

TABLES = {
    "plain": "i int, f float8, d numeric(5,2), s text, day date",
    "other": "i bigint, f real, d numeric, s char(2), day date",
    "narrow": "i int, f float8, d numeric(5,2), s varchar(2), day date",
}


@pytest.mark.parametrize("definition", TABLES.values(), ids=list(TABLES))
def test_a_condition_finds_what_it_finds_in_all_rows(events: PostgresTable, definition: str) -> None:
    """The server compares some of it, and `char(n)` otherwise: without spaces at the end."""
    chance = random.Random(definition)
    events.sql(f"CREATE TABLE events ({definition})")
    values = rows_of(chance, 40)
    values += [dict.fromkeys(COLUMNS), {**values[0], "s": "A"}, {**values[0], "s": "\U0001f600"}]
    places = ", ".join(["%s"] * len(COLUMNS))
    with psycopg.connect(events.url.replace("+psycopg", "")) as connection:
        for value in values:
            connection.execute(f"INSERT INTO events VALUES ({places})", [*value.values()])
    own = opened(events).reader
    everything = TableScan.of(own, None, None).to_reader().read_all().to_pylist()
    assert len(everything) == len(values)
    for _ in range(60):
        text, holds = condition(chance, depth=2)
        expected = [row for row in everything if holds(row) is True]
        found = TableScan.of(own, None, text).to_reader().read_all().to_pylist()
        assert repr(found) == repr(expected), text


SQL = {
    "i = 5": "\"i\" = CAST('5' AS BIGINT)",
    "f > 1.5": "\"f\" > '1.5'::float8",
    "f IS NAN": "\"f\" = 'nan'::float8",
    "d = 1.5": "\"d\" = CAST('1.5' AS DECIMAL(5, 2))",
    "s = 'it''s'": "\"s\" = E'it''s'",
    "s >= 'a'": '"s" COLLATE "C" >= E\'a\'',
    "s NOT IN ('a', 'b')": "\"s\" COLLATE \"C\" NOT IN (E'a', E'b')",
    "s LIKE 'a%'": 'starts_with("s" COLLATE "C", E\'a\')',
    "c = 'a'": None,
    "c = 'a' AND i = 5": "(\"i\" = CAST('5' AS BIGINT))",
    "c = 'a' OR i = 5": None,
    "c IS NULL OR i IS NOT NULL": '("c" IS NULL) OR ("i" IS NOT NULL)',
    "u = 'a'": None,
    "day = '2026-11-29'": "\"day\" = DATE '2026-11-29'",
    "ts < '2026-11-29T10:00:00+02:00'": "\"ts\" < '2026-11-29 08:00:00+00'::timestamptz",
    "flag = true": '"flag" = True',
    "i = 99999999999": "False",
}
KINDS = {
    "i": "integer",
    "f": "real",
    "d": "numeric(5,2)",
    "s": "text",
    "c": "character(2)",
    "u": "uuid",
    "day": "date",
    "ts": "timestamp with time zone",
    "flag": "boolean",
}


@pytest.mark.parametrize(("text", "sql"), SQL.items(), ids=list(SQL))
def test_the_server_gets_the_part_of_a_condition_that_it_compares_alike(text: str, sql: str | None) -> None:
    columns = {name: PostgresColumn(name, kind, False, False) for name, kind in KINDS.items()}
    where = parse_where(text, pa.schema([(name, one.data_type) for name, one in columns.items()]))
    assert postgres_filter(where, columns, compares_texts=True) == sql


def test_texts_are_compared_here_if_the_database_is_not_in_utf8() -> None:
    """Its bytes have another order, and it refuses characters that it does not have."""
    columns = {"s": PostgresColumn("s", "text", False, False)}
    where = parse_where("s = 'é'", pa.schema([("s", pa.string())]))
    assert postgres_filter(where, columns, compares_texts=False) is None


# Consistency ----------------------------------------------------------------------------------------------


def fill(events: PostgresTable, count: int = 10_000) -> None:
    """Rows on some pages."""
    events.sql("CREATE TABLE events (id bigint, more text)")
    events.sql(f"INSERT INTO events SELECT g, repeat('x', 100) FROM generate_series(1, {count}) g")


def parts_of(table: TableScan) -> Iterator[list[int]]:
    for file in table.files():
        yield [number for batch in table.scan().read([file]) for number in batch.column(0).to_pylist()]


def test_parts_have_each_row_once(events: PostgresTable) -> None:
    fill(events)
    table = opened(events, numPartitions="4", columns="id")
    parts = list(parts_of(table))
    assert [len(part) > 1000 for part in parts] == [True] * 4
    assert Counter(number for part in parts for number in part) == Counter(range(1, 10_001))
    files = list(table.files())
    events.sql("INSERT INTO events SELECT g FROM generate_series(10001, 20000) g")
    assert sum(batch.num_rows for batch in table.scan().read(files)) == 20_000


def test_a_table_with_fewer_pages_than_parts_is_read(events: PostgresTable) -> None:
    fill(events, 200)
    files = list(opened(events, numPartitions="1000").files())
    assert 1 < len(files) < 10
    assert numbers(events, numPartitions="1000") == list(range(1, 201))


def test_parts_with_a_batch_in_between_are_an_error(
    query: PostgresQuery, store: SqlManifestStore, events: PostgresTable
) -> None:
    query.run(store, query.batch(0), ids(*range(1000)))
    table = opened(events, numPartitions="2")
    files = list(table.files())
    assert list(table.scan().read(files[:1]))
    query.run(store, query.batch(1), ids(1000))
    with pytest.raises(
        RetryableError, match=r"A batch was committed .* Load the table again, or leave numPart"
    ):
        list(table.scan().read(files[1:]))
    assert numbers(events, numPartitions="2") == list(range(1001))


def test_a_batch_into_another_table_of_the_schema_does_not_matter(
    query: PostgresQuery, store: SqlManifestStore, events: PostgresTable
) -> None:
    query.run(store, query.batch(0), ids(1))
    table = opened(events, numPartitions="2")
    files = list(table.files())
    other = query.with_options(dbtable=f"{events.schema}.others")
    other.run(store, other.batch(0), ids(2))
    assert [batch.to_pydict() for batch in table.scan().read(files)] == [{"id": [1]}]


def test_a_batch_after_the_check_of_a_part_is_not_seen(
    query: PostgresQuery, store: SqlManifestStore, events: PostgresTable
) -> None:
    """The rows are of the snapshot in which the commits were compared."""
    query.run(store, query.batch(0), ids(1))
    table = opened(events, numPartitions="2")
    files = list(table.files())

    def commits(*arguments: Any) -> Any:
        found = Fence.commits(DIALECT.fence, *arguments)
        query.run(store, query.batch(1), ids(2))
        return found

    with patch.object(DIALECT.fence, "commits", commits, create=True):
        assert [batch.to_pydict() for batch in table.scan().read(files)] == [{"id": [1]}]
    assert numbers(events) == [1, 2]


@pytest.mark.parametrize(
    "change", ["VACUUM FULL events", "TRUNCATE events", "CLUSTER events USING events_id"]
)
def test_parts_of_a_table_that_was_rewritten_are_an_error(events: PostgresTable, change: str) -> None:
    """Rows are on other pages then."""
    fill(events, 1000)
    events.sql("CREATE INDEX events_id ON events (id)")
    table = opened(events, numPartitions="2")
    files = list(table.files())
    with psycopg.connect(events.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(change)
    with pytest.raises(RetryableError, match="was rewritten"):
        list(table.scan().read(files))


def test_the_table_is_locked_before_the_snapshot_is_taken(events: PostgresTable) -> None:
    """Otherwise the snapshot would see an empty table after TRUNCATE."""
    fill(events, 10)
    blocked = []

    def check(*arguments: Any) -> Any:
        try:
            events.sql("SET lock_timeout = '200ms'; TRUNCATE events; INSERT INTO events VALUES (11)")
        except psycopg.errors.LockNotAvailable:
            blocked.append(True)
        return real(*arguments)

    real = scan.check_table
    with patch.object(scan, "check_table", check):
        assert numbers(events) == list(range(1, 11))
    assert blocked


def test_a_read_has_one_snapshot_however_long_it_takes(events: PostgresTable) -> None:
    fill(events, 100_000)
    batches = opened(events, columns="id").to_reader()
    first = batches.read_next_batch().num_rows
    assert first < 70_000
    events.sql("DELETE FROM events")
    assert first + batches.read_all().num_rows == 100_000


def test_a_partly_visible_batch_is_awaited(events: PostgresTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of `commit=prepared`, whose rows become visible task by task."""
    fill(events, 10)
    with psycopg.connect(events.url.replace("+psycopg", "")) as connection:
        address = opened(events).reader.address  # type: ignore[attr-defined]
        DIALECT.prepared.set_up(connection.cursor(), DIALECT, address)
        DIALECT.prepared.put_verdicts(connection.cursor(), address, "q", ["one"], commits=True)
    monkeypatch.setattr(table, "BUSY_S", 0.2)
    with pytest.raises(RetryableError, match=r"commit=prepared is partly visible .* penstock recover"):
        numbers(events)
    monkeypatch.setattr(table, "BUSY_S", 10)
    monkeypatch.setattr(time, "sleep", lambda _: events.sql("DELETE FROM penstock_prepared"))
    assert numbers(events) == list(range(1, 11))


UNDIVIDED = {
    "view": "CREATE VIEW events AS SELECT 1::bigint AS id",
    "materialized view": "CREATE MATERIALIZED VIEW events AS SELECT 1::bigint AS id",
    "partitioned table": "CREATE TABLE events (id bigint) PARTITION BY LIST (id); "
    "CREATE TABLE one PARTITION OF events FOR VALUES IN (1); INSERT INTO events VALUES (1)",
    "tables that inherit": "CREATE TABLE events (id bigint); CREATE TABLE child () INHERITS (events); "
    "INSERT INTO child VALUES (1)",
}


@pytest.mark.parametrize("what", UNDIVIDED)
def test_what_cannot_be_divided_is_read_in_one_part(events: PostgresTable, what: str) -> None:
    events.sql(UNDIVIDED[what])
    assert numbers(events) == [1]
    with pytest.raises(ConfigurationError, match=f"numPartitions=2: .* {what}"):
        opened(events, numPartitions="2")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE events; CREATE TABLE events (id bigint, more text)", "was dropped or created again"),
        ("DROP TABLE events; CREATE VIEW events AS SELECT 1::bigint id, 'x' AS more", "was dropped or"),
        ("ALTER TABLE events ALTER id TYPE numeric", "was altered"),
        ("ALTER TABLE events RENAME more TO other", "was altered"),
    ],
)
def test_a_table_that_was_changed_after_planning_is_an_error(
    events: PostgresTable, change: str, problem: str
) -> None:
    fill(events, 10)
    table = opened(events)
    events.sql(change)
    with pytest.raises(RetryableError, match=problem):
        table.to_reader().read_all()


# Options and errors ---------------------------------------------------------------------------------------


def test_options_that_a_postgres_table_does_not_have_are_refused_by_name(events: PostgresTable) -> None:
    with pytest.raises(ConfigurationError) as refused:
        opened(events, versionAsOf="1", timestampAsOf="2026-11-29", splitSize="1mb", numPartitions="0")
    for problem in (
        "versionAsOf: a Postgres table has no earlier versions",
        "timestampAsOf: a Postgres table has no earlier versions",
        "splitSize: a Postgres table has no files: divide it with numPartitions",
        "numPartitions='0': must be a whole number from 1",
    ):
        assert problem in str(refused.value)


def test_a_missing_driver_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[postgres\]'"):
        reader.read("penstock.postgres", url="postgresql://u@host/db", dbtable="t")


def test_a_missing_table_is_an_error_that_says_so(events: PostgresTable) -> None:
    with pytest.raises(ConfigurationError, match=f"There is no Postgres table .*{events.schema}/events"):
        opened(events)


def test_errors_of_the_database_do_not_show_values(events: PostgresTable) -> None:
    events.sql("CREATE VIEW events AS SELECT ('geheim' || g)::bigint AS id FROM generate_series(1, 2) g")
    with pytest.raises(PenstockError, match="cannot be read: a value is not valid: Inv") as refused:
        rows(events)
    assert "geheim" not in str(refused.value)


def test_the_password_is_never_shown(events: PostgresTable) -> None:
    fill(events, 1)
    url = events.url.replace("postgres:@", "postgres:geheim-4711@")
    assert "geheim" in url
    found = reader.open_table("penstock.postgres", url=url, dbtable=f"{events.schema}.events")
    scan = pickle.loads(pickle.dumps(found.scan()))
    assert sum(batch.num_rows for batch in scan.read(found.files())) == 1
    for shown in (found, found.reader, found.scan(), list(found.files())):
        assert "geheim" not in repr(shown)
    nowhere = "postgresql://u:geheim-4711@127.0.0.1:1/db"
    with pytest.raises(RetryableError, match="Then read again") as refused:
        reader.open_table("penstock.postgres", url=nowhere, dbtable="t")
    assert "geheim" not in str(refused.value)


def test_denied_access_names_what_to_grant(events: PostgresTable) -> None:
    fill(events, 1)
    user = f"u{events.schema[1:9]}"
    events.sql(f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {events.schema} TO {user}")
    url = events.url.replace("postgres:@", f"{user}@")
    with pytest.raises(PenstockError, match=r"permission denied for table events.*SELECT on the table"):
        reader.read("penstock.postgres", url=url, dbtable=f"{events.schema}.events").read_all()


@pytest.mark.campaign
def test_memory_does_not_depend_on_the_size_of_the_table(events: PostgresTable) -> None:
    fill(events, 2_000_000)
    most = 0
    for batch in opened(events).to_reader():
        most = max(most, pa.total_allocated_bytes())
        assert batch.nbytes < 2 * scan_batch_bytes()
    assert most < 100 * 1024 * 1024


def scan_batch_bytes() -> int:
    from penstock.readers.scan import BATCH_BYTES

    return BATCH_BYTES
