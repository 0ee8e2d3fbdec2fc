"""What a binary COPY stores is what COPY stores from the text of the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.copy_csv import copy_csv

from penstock.committers.errors import SchemaMismatchError
from penstock.committers.postgres.types import sql_type
from penstock.writers.postgres.copy_binary import HEADER, TRAILER, copy_binary

INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))  # noqa: DTZ001
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda one: st.lists(one, max_size=3), max_leaves=5
)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    wide = st.integers(-most, most)
    some = st.sampled_from(
        [0, 1, -1, 9999, 10_000, -10_000, 99_999_999, 10**18, 2**63, -(2**64), most, -most]
    )
    return (wide | some.filter(lambda one: abs(one) <= most)).map(lambda one: Decimal(f"{one}E-{scale}"))


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, str, st.SearchStrategy[Any]]:
    """An Arrow type, the SQL type of the column, and values."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    bits = draw(st.sampled_from(list(INTEGERS)))
    number = pa.decimal128(precision, scale), decimals(precision, scale)
    wider = draw(st.sampled_from(["numeric", f"numeric({precision + 3},{scale + 2})", sql_type(number[0])]))
    integer = draw(st.sampled_from([kind for kind in INTEGERS.values() if kind.bit_width >= bits]))
    whole = draw(st.integers(1, 18))
    data_type, kind, values = draw(
        st.sampled_from(
            [
                (pa.bool_(), "boolean", st.booleans()),
                (INTEGERS[bits], sql_type(integer), integers(bits)),
                (INTEGERS[bits], "numeric", integers(bits)),
                (INTEGERS[bits], "numeric(21,2)", integers(bits)),
                (number[0], wider, number[1]),
                (pa.decimal128(whole, 0), "bigint", decimals(whole, 0)),
                (pa.float32(), "real", st.floats(width=32)),
                (pa.float64(), "double precision", st.floats()),
                (pa.string(), draw(st.sampled_from(["text", "character varying"])), TEXTS),
                (pa.string(), "character varying(12)", TEXTS),
                (pa.string(), "json", JSONS.map(as_json)),
                (pa.string(), "jsonb", JSONS.map(as_json)),
                (pa.string(), "uuid", st.uuids().map(str)),
                (pa.string(), "uuid", st.builds(other_form, st.uuids(), st.integers(0, 3))),
                (pa.binary(), "bytea", st.binary(max_size=12)),
                (pa.date32(), "date", st.dates()),
                (pa.timestamp("us"), "timestamp without time zone", TIMES),
                (
                    pa.timestamp("us", "UTC"),
                    "timestamp with time zone",
                    TIMES.map(lambda one: one.replace(tzinfo=timezone.utc)),
                ),
            ]
        )
    )
    assert kind is not None
    if "(12)" in kind or not draw(st.booleans()):
        return data_type, kind, values
    return pa.list_(data_type), f"{kind}[]", st.lists(values | st.none(), max_size=4)


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\\u0000", "")


def other_form(value: UUID, number: int) -> str:
    text = str(value)
    return [text.upper(), f"{{{text}}}", text.replace("-", ""), text[:4] + "-" + text[4:]][number]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str]]:
    """Rows, as a part of a larger batch, and the SQL types of their columns."""
    count, before, after = (draw(st.integers(0, most)) for most in (8, 2, 2))
    arrays, kinds = [], []
    for data_type, kind, values in draw(st.lists(columns(), min_size=1, max_size=6)):
        some = draw(st.sampled_from([values, values | st.none()]))
        drawn = draw(st.lists(some, min_size=count + before + after, max_size=count + before + after))
        arrays.append(pa.array(drawn, data_type))
        kinds.append(kind)
    names = [f"c{number}" for number in range(len(arrays))]
    return pa.RecordBatch.from_arrays(arrays, names=names).slice(before, count), kinds


@pytest.fixture(scope="module")
def connection(new_postgres_url: Callable[[], str]) -> Iterator[psycopg.Connection]:
    with psycopg.connect(new_postgres_url().replace("+psycopg", "")) as connection:
        yield connection


def create(connection: psycopg.Connection, table: str, kinds: Sequence[str]) -> None:
    listed = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    connection.execute(f"CREATE TEMPORARY TABLE {table} ({listed}) ON COMMIT DROP")


def copy_into(connection: psycopg.Connection, table: str, how: str, *parts: Any) -> None:
    with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT {how})") as copy:
        for part in parts:
            copy.write(part)


def stored(connection: psycopg.Connection, table: str) -> list[bytes]:
    """The rows of a table, each in the server's own binary form."""
    rows = connection.execute(f"SELECT record_send({table}) FROM {table} ORDER BY ctid").fetchall()
    return [row for (row,) in rows]


def copied(
    connection: psycopg.Connection, table: str, kinds: Sequence[str], how: str, *parts: Any
) -> list[bytes]:
    create(connection, table, kinds)
    copy_into(connection, table, how, *parts)
    return stored(connection, table)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables())
def test_binary_copy_stores_what_csv_and_psycopg_store(
    connection: psycopg.Connection, drawn: tuple[pa.RecordBatch, list[str]]
) -> None:
    rows, kinds = drawn
    with connection.transaction(force_rollback=True):
        wanted = copied(connection, "texts", kinds, "csv", memoryview(copy_csv(rows)))
        found = copied(connection, "ours", kinds, "binary", *binary(rows, kinds))
        adapted = copied_by_psycopg(connection, rows, kinds)
    assert len(found) == rows.num_rows
    assert found == wanted
    assert adapted in (found, None)


def binary(rows: pa.RecordBatch, kinds: Sequence[str]) -> tuple[Any, ...]:
    return HEADER, memoryview(copy_binary(rows, kinds)), TRAILER


def copied_by_psycopg(
    connection: psycopg.Connection, rows: pa.RecordBatch, kinds: Sequence[str]
) -> list[bytes] | None:
    """The rows that psycopg's own binary adapters store; None if a column has no adapter for the values."""
    names = [re.sub(r"\(.*?\)", "", kind) for kind in kinds]
    if any(name.startswith(("json", "uuid")) for name in names):
        return None
    if any(
        name.startswith("numeric") != pa.types.is_decimal(kind.value_type if pa.types.is_list(kind) else kind)
        for name, kind in zip(names, rows.schema.types, strict=True)
    ):
        return None
    create(connection, "adapted", kinds)
    with connection.cursor().copy("COPY adapted FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(names)
        for row in rows.to_pylist():
            copy.write_row(list(row.values()))
    return stored(connection, "adapted")


def test_decimals_of_all_scales_are_stored(connection: psycopg.Connection) -> None:
    """Numbers of up to 64 bits, and larger ones."""
    sizes = [(precision, scale) for precision in (5, 18, 19, 38) for scale in range(6)]
    parts = [1, -1, 12_345, -99_999, None, 0]
    columns = [
        pa.array([one and Decimal(f"{one * 10 ** (precision - 5)}E-{scale}") for one in parts], kind)
        for (precision, scale) in sizes
        for kind in [pa.decimal128(precision, scale)]
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=[f"c{number}" for number in range(len(columns))])
    kinds = [str(sql_type(kind)) for kind in rows.schema.types]
    with connection.transaction(force_rollback=True):
        create(connection, "ours", kinds)
        copy_into(connection, "ours", "binary", *binary(rows, kinds))
        found = connection.execute("SELECT * FROM ours ORDER BY ctid").fetchall()
    assert list(map(repr, found)) == [repr(tuple(row.values())) for row in rows.to_pylist()]


TEXTS_OF_NUMBERS = [
    "0",
    "-0.00",
    " 12.5 ",
    "1e5",
    "+1.50E-3",
    ".5",
    "5.",
    "NaN",
    "-123456789012345678901234567890123456789.0001",
]


def test_texts_become_numerics_as_the_server_reads_them(connection: psycopg.Connection) -> None:
    """A column of `numeric` without digits, with `schemaEvolution=quarantine`."""
    texts = pa.record_batch({"c0": pa.array([*TEXTS_OF_NUMBERS, None])})
    with connection.transaction(force_rollback=True):
        found = copied(connection, "ours", ["numeric"], "binary", *binary(texts, ["numeric"]))
        wanted = copied(connection, "texts", ["numeric"], "csv", memoryview(copy_csv(texts)))
    assert found == wanted


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("numeric", "1,5"),
        ("numeric", "1e200000"),
        ("numeric", "1e-20000"),
        ("uuid", "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0"),
        ("uuid", "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0g"),
        ("uuid", "0f0f0f0f0f0f-0f0f-0f0f--0f0f0f0f0f0f"),
        ("uuid[]", "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0é"),
    ],
)
def test_a_text_of_another_form_is_refused_and_not_shown(kind: str, text: str) -> None:
    texts = pa.array([None, text]) if not kind.endswith("[]") else pa.array([[text]])
    with pytest.raises(SchemaMismatchError, match="A text in the column c") as refused:
        copy_binary(pa.record_batch({"c": texts}), [kind])
    assert text not in str(refused.value)


def test_what_is_below_a_null_is_not_stored(connection: psycopg.Connection) -> None:
    """Arrow says nothing about the bytes of a NULL, and of the elements of a NULL list."""
    whole = pa.array([b"a\0\xff", b"b"]).buffers()
    mask = pa.array([False, True]).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 2, [mask, *whole[1:]])
    times = pa.Array.from_buffers(pa.timestamp("us"), 2, [mask, pa.array([2**62, 0]).buffers()[1]])
    lists = pa.ListArray.from_buffers(
        pa.list_(pa.int64()),
        2,
        [mask, pa.array([0, 2, 3], pa.int32()).buffers()[1]],
        children=[pa.array([7, 8, 9])],
    )
    rows = pa.RecordBatch.from_arrays([texts, times, lists], names=["c0", "c1", "c2"])
    kinds = ["text", "timestamp without time zone", "bigint[]"]
    with connection.transaction(force_rollback=True):
        create(connection, "ours", kinds)
        copy_into(connection, "ours", "binary", *binary(rows, kinds))
        found = connection.execute("SELECT * FROM ours ORDER BY ctid").fetchall()
    assert found == [(None, None, None), ("b", datetime(1970, 1, 1), [9])]  # noqa: DTZ001
