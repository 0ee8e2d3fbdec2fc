"""Every type that a Postgres table takes comes back as it was; all others are refused by name."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.database.server import COMMIT_TIMEOUT_S, IDLE_TASK_TIMEOUT_S
from penstock.committers.errors import SchemaMismatchError
from penstock.committers.postgres.types import holds, is_staged_as, sql_type
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.spark.types import ARROW_TYPES

TEXTS = ["", "a", "\\N", "NULL", "\\", "\\.", 'a"b,c{d}', "tab\tline\nreturn\r", "ä😀", " ", None]
UTC = timezone.utc
NUMBERS = [Decimal("0.0000000001"), Decimal("-9999999999999999999999999999.9999999999"), None]
INSTANTS = [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, 1, tzinfo=UTC), None]
TIMES = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]  # noqa: DTZ001

VALUES: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.bool_(), "boolean", [True, False, None]),
    (pa.int8(), "smallint", [-128, 127, None]),
    (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    (pa.int32(), "integer", [-(2**31), 2**31 - 1, None]),
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1, None]),
    (pa.float32(), "real", [1.5, -0.0, math.inf, math.nan, None]),
    (pa.float64(), "double precision", [0.1, 5e-324, 1.7976931348623157e308, -math.inf, math.nan, -0.0]),
    (pa.decimal128(38, 10), "numeric(38,10)", NUMBERS),
    (pa.string(), "text", TEXTS),
    (pa.binary(), "bytea", [b"", b"\x00\xff\\x", b"abc", None]),
    (pa.date32(), "date", [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31), None]),
    (pa.timestamp("us", "UTC"), "timestamp with time zone", INSTANTS),
    (pa.timestamp("us"), "timestamp without time zone", TIMES),
    (pa.list_(pa.int64()), "bigint[]", [[1, None, -3], [], None, [2]]),
    (pa.list_(pa.string()), "text[]", [TEXTS, [], None]),
    (pa.list_(pa.binary()), "bytea[]", [[b"\x00", b"", None], None]),
    (pa.list_(pa.bool_()), "boolean[]", [[True, None]]),
    (pa.list_(pa.date32()), "date[]", [[date(1, 1, 1)]]),
]


@pytest.fixture
def query(new_postgres_url: Callable[[], str]) -> PostgresQuery:
    return query_into(new_postgres_url())


@pytest.mark.parametrize(("kind", "sql_type", "values"), VALUES, ids=[str(kind) for kind, *_ in VALUES])
def test_every_value_comes_back_as_it_was(
    query: PostgresQuery, store: SqlManifestStore, kind: pa.DataType, sql_type: str, values: list[Any]
) -> None:
    rows = pa.table({"n": pa.array(range(len(values)), pa.int64()), "The col": pa.array(values, kind)})
    query.run(store, query.batch(0), rows.slice(1), rows.slice(0, 1))

    found = query.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'The col' "
        "AND attrelid = 'events'::regclass"
    )
    assert found == [(sql_type,)]
    back = [row[0] for row in query.sql('SELECT "The col" FROM events ORDER BY n')]
    if pa.types.is_timestamp(kind) and kind.tz:
        back = [value and value.astimezone(UTC) for value in back]
    assert list(map(repr, back)) == list(map(repr, values))


def test_texts_of_a_single_column_are_neither_end_nor_null(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    """For COPY a line of a backslash and a dot ends the rows, and an empty line is a NULL."""
    texts = ["\\.", "", None, "\n", '"', '""', "a,b"]
    query.run(store, query.batch(0), pa.table({"s": pa.array(texts, pa.string())}))
    assert query.sql("SELECT s FROM events") == [(text,) for text in texts]


def test_values_of_many_rows_come_back(query: PostgresQuery, store: SqlManifestStore) -> None:
    """A hash over all rows in Postgres and in duckdb."""
    import duckdb

    made = duckdb.sql(
        "SELECT i AS id, md5(i::varchar) AS s, (i * 7919 % 10007)::decimal(18, 3) / 1000 AS d, "
        "CASE WHEN i % 3 > 0 THEN make_timestamptz(i * 1000003 + 1) END AS t, encode(md5(i::varchar)) AS b "
        "FROM range(50000) r(i)"
    )
    rows = made.to_arrow_table().cast(
        pa.schema(
            [
                ("id", pa.int64()),
                ("s", pa.string()),
                ("d", pa.float64()),
                ("t", pa.timestamp("us", "UTC")),
                ("b", pa.binary()),
            ]
        )
    )
    query.run(store, query.batch(0), rows.slice(0, 30_001), rows.slice(30_001))
    (of_postgres,) = query.sql(
        "SELECT count(*), sum(id), md5(string_agg(s, '' ORDER BY id)), sum(d * 1000)::bigint, "
        "sum(extract(epoch FROM t) * 1000000)::numeric::text, "
        "md5(string_agg(encode(b, 'escape'), '' ORDER BY id)) "
        "FROM events"
    )
    of_duckdb = duckdb.sql(
        "SELECT count(*), sum(id), md5(string_agg(s, '' ORDER BY id)), sum(d * 1000)::bigint, "
        "sum(epoch_us(t))::varchar, md5(string_agg(decode(b), '' ORDER BY id)) FROM rows"
    ).fetchall()[0]

    assert [str(value).split(".")[0] for value in of_postgres] == [str(value) for value in of_duckdb]


ODD_SETTINGS = {
    "client_encoding": "LATIN1",
    "datestyle": "German, DMY",
    "timezone": "America/New_York",
    "array_nulls": "off",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "default_transaction_isolation": "serializable",
}


def test_settings_of_the_role_change_no_value(query: PostgresQuery, store: SqlManifestStore) -> None:
    user = f"u_{query.schema}"
    query.sql(f"CREATE ROLE {user} LOGIN SUPERUSER")
    for name, value in ODD_SETTINGS.items():
        query.sql(f"ALTER ROLE {user} SET {name} = '{value}'")
    odd = query_into(query.url.replace("//postgres", f"//{user}", 1))
    columns = [pa.array(values[:1] * 5 + [None], kind) for kind, _, values in VALUES]
    columns.append(pa.array([["a\\", None], None, [], [None], ["NULL"], ["é日本"]], pa.list_(pa.string())))
    columns.append(pa.array(["é", "日本", "Zürich", "'\\", "€", None]))
    rows = pa.table({f"c{number}": column for number, column in enumerate(columns)})
    odd.run(store, odd.batch(0), rows)

    back = query.sql("SELECT * FROM events")
    assert back == [tuple(row.values()) for row in rows.to_pylist()]


@pytest.mark.parametrize("statement_timeout", ["1h", "7s"])
def test_tasks_have_the_time_that_they_need(query: PostgresQuery, statement_timeout: str) -> None:
    """The settings of the url override those of the role."""
    user = f"u_{query.schema}"
    query.sql(f"CREATE ROLE {user} LOGIN SUPERUSER")
    version = query.sql("SHOW server_version_num")[0][0]
    limits = {"lock_timeout": "30s", "statement_timeout": "1h", "idle_in_transaction_session_timeout": "1d"}
    if int(version) >= 170000:
        limits["transaction_timeout"] = "0"
    for name in limits:
        query.sql(f"ALTER ROLE {user} SET {name} = '3s'")
    url = query.url.replace("//postgres", f"//{user}", 1).replace(
        "options=", "options=-cdeadlock_timeout%3D2s%20"
    )
    if statement_timeout != "1h":
        url = url.replace("options=", f"options=--statement-timeout%3D{statement_timeout}%20")
    target: Any = query.with_options(url=url).target()
    server = target._server
    with server.connect(COMMIT_TIMEOUT_S, IDLE_TASK_TIMEOUT_S) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in limits}

    expected = {**limits, "statement_timeout": statement_timeout}
    assert found == {name: (value,) for name, value in expected.items()}


@pytest.mark.parametrize("in_url", [True, False])
def test_texts_stay_whole_whatever_the_encoding(
    query: PostgresQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, in_url: bool
) -> None:
    if not in_url:
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    latin = query_into(query.url + "&client_encoding=LATIN1" * in_url)
    texts = ["é", "Zürich", "日本"]
    latin.run(store, latin.batch(0), pa.table({"s": texts}))
    monkeypatch.undo()

    assert query.sql("SELECT s, length(s) FROM events") == [(text, len(text)) for text in texts]


def test_a_database_in_latin1_refuses_other_characters(query: PostgresQuery, store: SqlManifestStore) -> None:
    name = f"latin_{query.schema}"
    with psycopg.connect(query.url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = query_into(query.url.replace("/postgres?", f"/{name}?", 1))
    latin.sql(f"CREATE SCHEMA {query.schema}")
    latin.run(store, latin.batch(0), pa.table({"s": ["é", "Zürich"]}))
    message = "A string in s contains a character that the encoding of the database, LATIN1, does not have"
    for bad in (["é", "日本"], [["é"], ["日本"]]):
        with pytest.raises(SchemaMismatchError, match=message):
            latin.run(store, latin.batch(1), pa.table({"s": bad}))
        latin = latin.with_options(dbtable=f"{query.schema}.lists", newTarget="allow")
    with pytest.raises(SchemaMismatchError, match="'日' has a character that the encoding of the database"):
        latin.plan(store, latin.batch(2), pa.schema([("日", pa.int64())]))

    read = query_into(f"{latin.url}&client_encoding=UTF8")
    assert read.sql("SELECT s, length(s) FROM events") == [("é", 1), ("Zürich", 6)]


def test_floats_are_the_same_numbers_in_a_wider_column(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (c double precision, d double precision[])")
    floats = pa.array([0.1, 16777216.5, 3.4e38, 1e-45, math.nan, None], pa.float32())
    lists = pa.array([[0.1, None], None, [], [1e-45], [-math.inf], [3.4e38]], pa.list_(pa.float32()))
    query.run(store, query.batch(0), pa.table({"c": floats, "d": lists}))

    back = query.sql("SELECT c, d FROM events")
    assert repr(back) == repr(list(zip(floats.to_pylist(), lists.to_pylist(), strict=True)))


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("x", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.list_(pa.int64())),
        pa.list_(pa.struct([("x", pa.int64())])),
    ],
    ids=str,
)
def test_unsupported_types_are_refused(
    query: PostgresQuery, store: SqlManifestStore, kind: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatchError, match=r"'a b' is .* write to_json\(`a b`\)"):
        query.plan(store, query.batch(0), pa.table({"a b": pa.nulls(1, kind)}).schema)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array(["a\0b"]), "NUL character"),
        (pa.array([["a\0b"]]), "NUL character"),
        (pa.array([3_000_000], pa.int32()).view(pa.date32()), "outside of the years 1 to 9999"),
        (pa.array([-(10**17)], pa.int64()).view(pa.timestamp("us")), "outside of the years 1 to 9999"),
        (pa.array([b"\xff"], pa.binary()).view(pa.string()), "not valid UTF-8"),
    ],
)
def test_a_value_that_postgres_cannot_hold_is_refused_and_its_column_named(
    query: PostgresQuery, store: SqlManifestStore, values: pa.Array, said: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=said) as refused:
        query.run(store, query.batch(0), pa.table({"col": values}))

    assert "col" in str(refused.value)
    assert query.staged() == []


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int32(), "bigint"),
        (pa.int64(), "numeric"),
        (pa.int16(), "numeric(5,0)"),
        (pa.float32(), "double precision"),
        (pa.decimal128(10, 2), "numeric(12,3)"),
        (pa.decimal128(10, 2), "numeric"),
        (pa.string(), "varchar"),
        (pa.string(), "jsonb"),
        (pa.list_(pa.int32()), "bigint[]"),
    ],
    ids=str,
)
def test_columns_may_be_wider(
    query: PostgresQuery, store: SqlManifestStore, kind: pa.DataType, column: str
) -> None:
    query.sql(f"CREATE TABLE events (c {column})")
    query.run(store, query.batch(0), pa.table({"C": pa.nulls(2, kind)}))

    assert query.sql("SELECT count(*) FROM events") == [(2,)]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "integer"),
        (pa.float64(), "real"),
        (pa.int32(), "double precision"),
        (pa.decimal128(10, 2), "numeric(10,1)"),
        (pa.decimal128(10, 2), "numeric(10,3)"),
        (pa.string(), "varchar(10)"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamp(3)"),
        (pa.binary(), "text"),
    ],
    ids=str,
)
def test_narrower_columns_are_refused(
    query: PostgresQuery, store: SqlManifestStore, kind: pa.DataType, column: str
) -> None:
    query.sql(f"CREATE TABLE events (c {column})")
    with pytest.raises(SchemaMismatchError, match="without loss"):
        query.plan(store, query.batch(0), pa.table({"c": pa.nulls(1, kind)}).schema)


def test_a_text_that_is_no_json_is_refused_by_its_task(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (c jsonb)")
    with pytest.raises(SchemaMismatchError, match="in column c is not valid: InvalidText") as refused:
        query.run(store, query.batch(0), pa.table({"c": ["{" + 9 * "x"]}))

    assert query.staged() == []
    assert "xxx" not in "".join(traceback.format_exception(refused.value))


def test_the_documents_say_which_types_columns_get() -> None:
    page = (Path(__file__).parents[2] / "docs" / "types.md").read_text()
    rows = dict(
        re.findall(
            r"^\| `(\w+(?:\(p,s\))?)` \| `([^`]+)` \|",
            page.split("## Postgres tables")[1].split("\n## ")[0],
            re.M,
        )
    )
    kinds = {**ARROW_TYPES, "DecimalType(p,s)": pa.decimal128(7, 3)}
    spark = {"LongType": "bigint", "IntegerType": "int", "TimestampNTZType": "timestamp_ntz"}
    short = {"timestamp with time zone": "timestamptz", "timestamp without time zone": "timestamp"}
    for name, kind in kinds.items():
        sql = str(sql_type(kind)).replace("7,3", "p,s")
        shown = spark.get(name, name.replace("Type", "").lower())
        if shown not in ("byte", "short"):
            assert rows[shown] == short.get(sql, sql)


def test_a_manifest_may_name_every_type_that_a_column_may_have_and_no_other() -> None:
    kinds = [*ARROW_TYPES.values(), pa.decimal128(7, 3)]
    columns = ["numeric", "character varying", "uuid", "json", "jsonb", *map(str, map(sql_type, kinds))]
    for kind in kinds:
        for column in columns:
            assert is_staged_as(column)
            assert not holds(column, kind) or is_staged_as(f"{column}[]")
    for clause in (
        "bigint references users on delete cascade",
        "bigserial primary key",
        "text default now",
        "",
    ):
        assert not is_staged_as(clause)
