"""Rows with values that formats of files easily lose."""

# ruff: noqa: DTZ001  some timestamps have no zone

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from tests.support.files import FilesHarness

from penstock.committers.contract import AttemptId, Batch, Manifest, StreamKey
from penstock.datasource.files.options import FilesOptions
from penstock.datasource.files.sink import sink_of
from penstock.datasource.files.target import FilesTarget

_FLAT = {
    "id": pa.int64(),
    "flag": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "single": pa.float32(),
    "double": pa.float64(),
    "wide": pa.decimal128(38, 10),
    "narrow": pa.decimal128(9, 2),
    "text": pa.string(),
    "day": pa.date32(),
    "instant": pa.timestamp("us", tz="UTC"),
    "local": pa.timestamp("us"),
}
_NESTED = {
    "raw": pa.binary(),
    "numbers": pa.list_(pa.int64()),
    "structs": pa.list_(pa.struct([("x", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])),
    "prices": pa.map_(pa.string(), pa.decimal128(9, 2)),
}
SQL = (  # the columns for Spark
    "id BIGINT, flag BOOLEAN, byte TINYINT, short SMALLINT, single FLOAT, double DOUBLE, "
    "wide DECIMAL(38, 10), narrow DECIMAL(9, 2), text STRING, day DATE, instant TIMESTAMP, "
    "local TIMESTAMP_NTZ"
)
SQL_NESTED = (
    f"{SQL}, raw BINARY, numbers ARRAY<BIGINT>, structs ARRAY<STRUCT<x: BIGINT, t: TIMESTAMP>>, "
    "prices MAP<STRING, DECIMAL(9, 2)>"
)

_ROWS: list[dict[str, Any]] = [
    {},
    {"flag": True, "byte": -128, "short": 32767, "single": 0.1, "double": 0.1, "text": "a"},
    {"wide": Decimal("1234567890123456789012345678.0123456789"), "narrow": Decimal("-0.01")},
    {"wide": Decimal("0.0000000001"), "single": float("nan"), "double": float("nan"), "text": ""},
    {"single": float("inf"), "double": float("-inf"), "text": 'say "x", \\ \\" \r\n\u00e9\U0001f600 \\'},
    {"double": 1.7976931348623157e308, "text": " \ttrail "},
    {"double": 5e-324, "text": "NULL"},
    {"text": "null,#\n"},
    {"day": date(9999, 12, 31), "instant": datetime(9999, 12, 31, 23, 59, 59, 999999)},
    {"instant": datetime(2024, 3, 31, 2, 30, 0, 1), "local": datetime(2024, 3, 10, 2, 30)},
    {"day": date(1970, 1, 1), "instant": datetime(1970, 1, 1), "local": datetime(9999, 12, 31)},
    {"raw": b"\x00\xff", "numbers": [1, None], "prices": [("k", Decimal("1.10")), ("n", None)]},
    {"raw": b"", "numbers": [], "structs": [{"x": 1, "t": datetime(2024, 1, 1)}, None], "prices": []},
]
_OLD_ROWS: list[dict[str, Any]] = [
    {
        "day": date(1, 1, 1),
        "instant": datetime(1, 1, 1, 0, 0, 0, 1),
        "local": datetime(1582, 10, 10, 1, 2, 3),
    },
    {"instant": datetime(1969, 12, 31, 23, 59, 59, 999999), "local": datetime(1900, 1, 1, 0, 0, 0, 123456)},
]


def rows_for(file_format: str) -> pa.Table:
    """The rows with the types and values that the format has. Times without a zone are in UTC."""
    types = dict(_FLAT) if file_format == "csv" else {**_FLAT, **_NESTED}
    if file_format == "orc":
        del types["local"]
    rows = _ROWS if file_format == "orc" else [*_ROWS, *_OLD_ROWS]
    schema = pa.schema(list(types.items()))
    return pa.Table.from_pylist([{"id": number, **row} for number, row in enumerate(rows)], schema=schema)


class Place(Protocol):
    """A folder, or a table of a catalog for it."""

    @property
    def options(self) -> dict[str, str]: ...


def target_of(place: Place, **options: str) -> FilesTarget:
    target = sink_of(FilesOptions.parse({**place.options, **options})).open_table()
    assert isinstance(target, FilesTarget)
    return target


def stage(target: FilesTarget, rows: pa.Table, batch_id: int = 0, *, run_id: str = "run") -> Manifest:
    """Write a batch of the query q1 in one task, and do not commit it."""
    planned = target.plan_batch(rows.schema, "append", batch_id)
    writer = planned.writers.open(AttemptId("q1", run_id, batch_id, 0, 0))
    for batch in rows.to_batches():
        writer.write(batch)
    batch_of_rows = Batch(StreamKey("q1", target.folder), batch_id, "a" * 64)
    return target.manifest(batch_of_rows, planned.content, [writer.finish()])


def write(harness: FilesHarness, rows: pa.Table, **options: str) -> Path:
    """Write the rows as one file and return its path."""
    target = target_of(harness, **options)
    target.commit(stage(target, rows))
    (path,) = harness.folder.rglob("penstock-*.*")
    return path


def canonical(rows: Collection[dict[str, Any]]) -> list[dict[str, str]]:
    """Rows in the order of their ids, as text, in which NaN equals itself and zones of UTC each other."""
    ordered = sorted(rows, key=lambda row: int(row["id"]))
    return [{name: _text(value) for name, value in row.items()} for row in ordered]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return _text(list(value.items()))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.replace(tzinfo=None).isoformat()}{value.strftime('%z')}"
    return value.isoformat() if isinstance(value, datetime) else str(value)
