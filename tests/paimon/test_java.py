"""Paimon's own Java library reads, extends and cleans the tables that Penstock writes."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
from servers.paimon_reader import paimon_java
from tests.support.paimon_table import PaimonHarness
from tests.support.unreachable import skipped_if_unreachable
from tests.support.values import rows_of_all_types

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query
from penstock.testing.faults import crash_at

ROWS = pa.schema([("id", pa.int64()), ("day", pa.date32())])


def java(harness: PaimonHarness, *commands: str) -> list[dict[str, str]]:
    with skipped_if_unreachable():
        return paimon_java(harness.warehouse, "lake.rows", *commands)


def test_java_reads_all_types_and_partitions(harness: PaimonHarness, store: SqlManifestStore) -> None:
    query = Query(harness, options={"partitionBy": "date"}, store=store)
    rows = rows_of_all_types().append_column("nan", pa.array([float("nan"), None, None]))
    query.run(store, query.batch(0), rows)

    found = sorted(java(harness, "read"), key=lambda row: row["id"])
    null = {**dict.fromkeys(rows.column_names, "NULL"), "struct_of_arrays": "{null, null}"}
    assert found[1] == {**null, "id": "1"}
    assert [found[2][name] for name in ("string", "date", "array", "map")] == ["", "9999-12-31", "[]", "{}"]
    assert found[0] == {
        "id": "0",
        "boolean": "true",
        "byte": "-128",
        "short": "-32768",
        "int": "-2147483648",
        "long": "-9223372036854775808",
        "float": "1.5",
        "double": "-Infinity",
        "nan": "NaN",
        "string": "ä",
        "binary": "\ufffd",
        "date": "0001-01-01",
        "timestamp": "1900-01-02 03:04:05.678901",
        "timestamp_ntz": "1900-01-02 03:04:05.678901",
        "decimal": "-12345678901234567890.0123456789",
        "array": "[a, null]",
        "array_of_arrays": "[[1, null], null, []]",
        "array_of_floats": "[1.0, null]",
        "struct": "{1, null}",
        "array_of_structs": "[{1}, null]",
        "struct_of_arrays": "{[1], -0.01}",
        "map": "{a -> 1, b -> null}",
        "map_of_structs": "{a -> {1}}",
        "array_of_maps": "[{a -> 1}, null]",
    }


def test_java_appends_expires_and_cleans_next_to_a_query(
    harness: PaimonHarness, store: SqlManifestStore
) -> None:
    """The query's own snapshot expires, and its note stays. Files that no snapshot lists are orphans."""
    query = Query(harness, store=store)

    def row(row_id: int) -> pa.Table:
        return pa.table({"id": [row_id], "day": [date(2026, 3, 1)]}, schema=ROWS)

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
