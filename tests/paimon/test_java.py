"""Paimon's own Java library reads, extends and cleans the tables that Penstock writes."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
from servers.paimon_reader import paimon_java
from tests.support.paimon_table import PaimonHarness
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query
from penstock.testing.faults import crash_at

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("is_it", pa.bool_()),
        ("price", pa.decimal128(38, 10)),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))])),
    ]
)
ROW = {
    "id": 0,
    "day": date(2026, 3, 1),
    "tiny": -128,
    "small": 32767,
    "number": -5,
    "single": 1.5,
    "double": float("nan"),
    "is_it": True,
    "price": Decimal("-1234567890123456789012345678.0123456789"),
    "text": "Grüße ☃",
    "bytes": b"ab",
    "at": MOMENT,
    "local": MOMENT.replace(tzinfo=None),
    "list": [1, None],
    "map": [("k", 7)],
    "struct": {"a": 1, "b": [{"c": "d"}, None]},
}


def java(harness: PaimonHarness, *commands: str) -> list[dict[str, str]]:
    with skipped_if_unreachable():
        return paimon_java(harness.warehouse, "lake.rows", *commands)


def test_java_reads_all_types_and_partitions(harness: PaimonHarness, store: SqlManifestStore) -> None:
    query = Query(harness, options={"partitionBy": "day"}, store=store)
    nulls = {**dict.fromkeys(COLUMNS.names), "id": 1}
    query.run(store, query.batch(0), pa.Table.from_pylist([ROW, nulls], schema=COLUMNS))

    found = sorted(java(harness, "read"), key=lambda row: row["id"])
    assert found[1] == {**dict.fromkeys(COLUMNS.names, "NULL"), "id": "1"}
    assert found[0] == {
        "id": "0",
        "day": "2026-03-01",
        "tiny": "-128",
        "small": "32767",
        "number": "-5",
        "single": "1.5",
        "double": "NaN",
        "is_it": "true",
        "price": "-1234567890123456789012345678.0123456789",
        "text": "Grüße ☃",
        "bytes": "ab",
        "at": "2026-03-01 12:30:15.123456",
        "local": "2026-03-01 12:30:15.123456",
        "list": "[1, null]",
        "map": "{k -> 7}",
        "struct": "{1, [{d}, null]}",
    }


def test_java_appends_expires_and_cleans_next_to_a_query(
    harness: PaimonHarness, store: SqlManifestStore
) -> None:
    """The query's own snapshot expires, and its note stays. Files that no snapshot lists are orphans."""
    query = Query(harness, store=store)

    def row(row_id: int) -> pa.Table:
        return pa.table({"id": [row_id], "day": [date(2026, 3, 1)]}, schema=pa.schema(list(COLUMNS)[:2]))

    query.run(store, query.batch(0), row(0))
    query.write(query.plan(store, query.batch(1), row(1).schema), [row(1)])
    assert harness.uncommitted()
    java(harness, "append", "100", "append", "101", "expire", "remove-orphans")
    assert list(harness.snapshots()) == [3]
    assert not harness.uncommitted()
    assert (harness.path / "penstock" / "q1.json").exists()
    for batch_id in (0, 1, 0):
        query.run(store, query.batch(batch_id), row(batch_id))
    with crash_at("commit.landed"):
        query.run(store, query.batch(2), row(2))

    found = java(harness, "append", "102", "read")
    assert sorted(int(one["id"]) for one in found) == [0, 1, 2, 100, 101, 102]
    query.recover(store)
    assert sorted(harness.ids()) == [0, 1, 2, 100, 101, 102]
    assert harness.problems() == []
