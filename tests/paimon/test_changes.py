"""Changes by key in Paimon tables with a primary key: what is refused, sequence numbers, buckets."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from servers.paimon_reader import paimon_java
from tests.support.paimon_table import PaimonHarness
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.paimon import committer
from penstock.committers.paimon.merge_tree import Sequences
from penstock.committers.paimon.sequences import NEWEST, newest_sequence
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.paimon import sink
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import COLUMNS, Upserts, changes, upserts_of
from penstock.testing.faults import at_point
from penstock.writers.paimon.buckets import row_buckets

TABLE = pa.schema([field for field in COLUMNS if field.name != "op"])
KEYED: Mapping[str, Any] = {"primary_keys": ["id"], "properties": {"bucket": "1"}}


@pytest.fixture
def upserts(harness: PaimonHarness, store: SqlManifestStore) -> Upserts:
    return upserts_of(harness, store)


def keyed(**properties: str) -> Mapping[str, Any]:
    return {"primary_keys": ["id"], "properties": {"bucket": "1", **properties}}


# The table --------------------------------------------------------------------------------------------

REFUSED: dict[str, Mapping[str, Any]] = {
    "no primary key": {},
    r"bucket=-1: an index assigns keys": {"primary_keys": ["id"]},
    r"bucket=-2: readers see no row": keyed(bucket="-2"),
    "merge-engine=partial-update": keyed(**{"merge-engine": "partial-update"}),
    "merge-engine=first-row": keyed(**{"merge-engine": "first-row"}),
    "ignore-delete=true": keyed(**{"ignore-delete": "true"}),
    r"sequence.field=n: its readers ignore late rows": keyed(**{"sequence.field": "n"}),
    "changelog-producer=input": keyed(**{"changelog-producer": "input"}),
    "deletion-vectors.enabled=true: readers see no row": keyed(**{"deletion-vectors.enabled": "true"}),
    "rowkind.field": keyed(**{"rowkind.field": "text"}),
}


@pytest.mark.parametrize("feature", REFUSED)
def test_a_table_whose_readers_would_merge_otherwise_is_refused_by_name(
    upserts: Upserts, harness: PaimonHarness, feature: str
) -> None:
    harness.create(TABLE, **REFUSED[feature])
    with pytest.raises(TableNotSupportedError, match=feature):
        upserts.run(0, changes((1, 1, "a")))
    assert harness.snapshots() == {}
    assert not harness.uncommitted()


def test_a_table_with_another_key_is_refused(upserts: Upserts, harness: PaimonHarness) -> None:
    harness.create(TABLE, partition_by=["n"], primary_keys=["id", "n"], properties={"bucket": "1"})
    with pytest.raises(ConfigurationError, match=r"the primary key of the Paimon table .* is id, n"):
        upserts.run(0, changes((1, 1, "a")))


def test_rows_that_delete_need_columns_that_may_be_null(upserts: Upserts, harness: PaimonHarness) -> None:
    required = pa.schema([TABLE.field("id"), TABLE.field("n"), pa.field("text", pa.string(), nullable=False)])
    harness.create(required, **KEYED)
    with pytest.raises(TableNotSupportedError, match="NOT NULL in text"):
        upserts.run(0, changes((1, 1, "a")))
    upserts.without("deleteWhen").run(0, changes((1, 1, "a")))
    upserts.check((1, 1, "a"))


def test_late_rows_need_a_table_that_compares_them(upserts: Upserts, harness: PaimonHarness) -> None:
    """A new table does."""
    harness.create(TABLE, **KEYED)
    ignoring = upserts.with_options(lateRows="ignore")
    with pytest.raises(TableNotSupportedError, match=r"use a table with sequence\.field=n"):
        ignoring.run(0, changes((1, 1, "a")))
    harness.drop()
    ignoring.run(0, changes((1, 1, "a")))
    assert harness.schema()["options"] == {"bucket": "1", "sequence.field": "n"}


def test_a_new_table_has_the_key_and_the_buckets_of_the_query(
    upserts: Upserts, harness: PaimonHarness
) -> None:
    """Partition columns are a part of the key, and others may be in any order."""
    options = {"keys": "text, ID", "partitionBy": "text", "tableProperties": json.dumps({"bucket": "3"})}
    upserts.with_options(**options).run(0, changes(*[(row_id, 1, "a") for row_id in range(20)]))
    schema = harness.schema()
    assert (schema["primaryKeys"], schema["partitionKeys"]) == (["text", "id"], ["text"])
    assert len(harness.committed()) == 3
    again = upserts.with_options(keys="id, text")
    again.run(1, changes(*[(row_id, 2, "a") for row_id in range(19)], (19, 2, "b")))
    again.check(*[(row_id, 2, "a") for row_id in range(19)], (19, 1, "a"), (19, 2, "b"))


def test_a_batch_for_other_buckets_is_not_committed(
    upserts: Upserts, harness: PaimonHarness, store: SqlManifestStore
) -> None:
    """Nor one into a table with partitions that have not been rescaled."""
    harness.create(TABLE, **KEYED)
    upserts.run(0, changes((1, 1, "a")))
    manifest = upserts.query.build(store, upserts.query.batch(1), changes((1, 2, "A")))
    schema = json.loads((harness.path / "schema" / "schema-0").read_text())
    changed = {**schema, "id": 1, "options": {**schema["options"], "bucket": "2"}}
    (harness.path / "schema" / "schema-1").write_text(json.dumps(changed))

    with pytest.raises(SchemaMismatchError, match=r"has bucket=2, and batch 1 .* written for bucket=1"):
        upserts.query.target().commit(manifest)
    with pytest.raises(TableNotSupportedError, match="files in 1 buckets"):
        upserts.run(1, changes((1, 2, "A")))
    upserts.check((1, 1, "a"))


# Sequence numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_rows", ["apply", "ignore"])
def test_a_batch_counts_over_all_that_was_committed_before_it(
    upserts: Upserts, harness: PaimonHarness, store: SqlManifestStore, late_rows: str
) -> None:
    """Also if others have counted on, or have a clock that is ahead. Then the files are written again."""
    upserts = upserts.with_options(lateRows=late_rows)
    upserts.run(0, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    query = upserts.query
    parts = changes((1, 2, "A"), (2, 2)), changes((1, 3, "AA"), (4, 1, "d"))
    manifest = query.build(store, query.batch(1), *parts)
    harness.write([(1, 1, "other"), (2, 1, "other"), (5, 1, "other")], after=time.time_ns())
    written = set(harness.data_files())

    assert isinstance(query.target().commit(manifest), Committed)
    upserts.check((1, 3, "AA"), (3, 1, "c"), (4, 1, "d"), (5, 1, "other"))
    assert not harness.uncommitted()
    again = (
        1 if late_rows == "apply" else 0
    )  # the last row of key 1, unless readers see that it is the last one
    assert len(set(harness.data_files()) - written) == 2 + again
    manifest = query.build(store, query.batch(2), changes((5, 2), (1, 4, "newest")))
    (file,) = [name for name in harness.uncommitted() if ".keys." not in name]
    query.target().commit(manifest)
    upserts.check((1, 4, "newest"), (3, 1, "c"), (4, 1, "d"))
    assert file in harness.committed(), "its plan knew the numbers, so it was not written again"


def test_files_of_an_attempt_that_lost_are_deleted(
    upserts: Upserts, harness: PaimonHarness, store: SqlManifestStore
) -> None:
    query = upserts.query
    upserts.run(0, changes((1, 1, "a")))
    manifest = query.build(store, query.batch(1), changes((1, 2, "A")), changes((1, 3)))
    before = harness.uncommitted()
    with at_point("commit.start", lambda: harness.append(7)):
        assert isinstance(query.target().commit(manifest), Conflict)
    assert harness.uncommitted() == before
    assert isinstance(query.target().commit(manifest), Committed)
    upserts.check((7, None, None))  # type: ignore[arg-type]


def test_the_greatest_number_of_the_table_is_known_from_its_snapshots(
    upserts: Upserts, harness: PaimonHarness
) -> None:
    """From the last one of a query and what others have added since; from all files, if some have expired."""

    def newest() -> int:
        table = harness.in_catalog()
        return newest_sequence(table, table.load(), table.head().snapshot_id)

    upserts.run(0, changes((1, 1, "a")))
    noted = int(harness.snapshots()[1]["properties"][NEWEST])
    assert newest() == noted
    harness.write([(row_id, 1, "other") for row_id in range(5)])
    harness.write([(9, 1, "other")], after=noted)
    assert newest() == noted + 5
    harness.expire()
    assert list(harness.snapshots()) == [3]
    assert newest() == noted + 5
    upserts.run(1, changes((9, 1)))
    assert int(harness.snapshots()[4]["properties"][NEWEST]) == newest() > noted + 5


def test_a_commit_of_one_task_writes_no_row_again(upserts: Upserts, harness: PaimonHarness) -> None:
    """Nor does one of tasks without a common key, or with equal rows."""
    upserts.run(0, changes((1, 1, "a"), (1, 2, "b"), (2, 1)))
    upserts.check(
        (1, 2, "b")
    )  # readers do not merge the rows of one file, if it says that it has no deletions
    upserts.run(1, changes((1, 3, "c"), (5, 1, "e")), changes((2, 1, "b"), (5, 1, "e")))
    assert len(harness.committed()) == 3
    upserts.check((1, 3, "c"), (2, 1, "b"), (5, 1, "e"))


@pytest.mark.parametrize("clock", [1, 0, -1], ids=["ahead", "one plan", "backwards"])
def test_a_later_batch_of_a_delivery_counts_whatever_the_clock_says(
    upserts: Upserts, harness: PaimonHarness, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    """The last row of a key is only written again if the numbers do not tell it."""
    decoupled, now = upserts.with_options(delivery="decoupled"), time.time_ns()
    for number in range(3):
        monkeypatch.setattr(sink, "Sequences", _at(now + clock * number * 10**9))
        planned_anew = decoupled.with_options(targetFileSize=f"{1 + abs(clock) * number}mb")
        planned_anew.run(number, changes((1, number, "a")), changes((2 + number, 1, "b")))
    deliver(upserts.store)
    upserts.check((1, 2, "a"), *[(2 + number, 1, "b") for number in range(3)])
    assert len(harness.committed()) == 6 + (clock < 0)


def _at(now_ns: int) -> type[Sequences]:
    class Then(Sequences):
        @classmethod
        def of_plan(cls, newest: int, batch_id: int) -> Sequences:
            return Sequences(now_ns // 1000, batch_id)

    return Then


def test_late_rows_are_known_when_the_table_has_forgotten_the_deletion(
    upserts: Upserts, harness: PaimonHarness
) -> None:
    """As a compaction forgets it. Only newer rows bring the key back."""
    ignoring = upserts.with_options(lateRows="ignore")
    ignoring.run(0, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    ignoring.run(1, changes((1, 5), (2, 5)))
    harness.forget_deletions()
    ignoring.check((3, 1, "c"))
    ignoring.run(2, changes((1, 4, "late"), (3, 2, "C")), changes((1, 3, "later"), (2, 6, "new")))
    ignoring.check((2, 6, "new"), (3, 2, "C"))
    harness.forget_deletions()
    ignoring.run(3, changes((2, 5, "late"), (1, 5, "as old")))
    ignoring.check((1, 5, "as old"), (2, 6, "new"), (3, 2, "C"))


def test_a_driver_that_finds_the_files_of_its_batch_deleted_looks_again(
    upserts: Upserts, harness: PaimonHarness, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver has committed it, and deleted its key files."""
    query, others = upserts.query, list[object]()
    manifest = query.build(store, query.batch(0), changes((1, 1, "a")), changes((1, 2)))

    def newest(*args: Any) -> int:
        if not others:
            others.append(manifest)
            others.append(query.target().commit(manifest))
        return newest_sequence(*args)

    monkeypatch.setattr(committer, "newest_sequence", newest)
    assert isinstance(query.target().commit(manifest), Conflict)
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert isinstance(others[1], Committed)
    upserts.check()


# Buckets ----------------------------------------------------------------------------------------------

KEYS: Mapping[pa.DataType, Sequence[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int32(): [-(2**31), -1, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 2**63 - 1],
    pa.date32(): [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)],
    pa.string(): ["", "a", "1234567", "12345678", "é€😀" * 20],
    pa.binary(): [b"", b"\x00", bytes(7), bytes(8), bytes(range(128, 256))],
    pa.decimal128(10, 2): [Decimal("-0.01"), Decimal("12345678.90")],
    pa.decimal128(38, 3): [Decimal("-1.000"), Decimal(10**34)],
    pa.timestamp("us"): [datetime(1900, 1, 2, 3, 4, 5, 678901), datetime(2026, 1, 1)],  # noqa: DTZ001
    pa.timestamp("us", "UTC"): [datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=timezone.utc)],
}


def rows_of_keys(count: int, text: str) -> pa.Table:
    """Rows (id, a key of each type, text)."""
    keys = {
        f"key{number}": pa.array([values[row * 7 // 3 % len(values)] for row in range(count)], kind)
        for number, (kind, values) in enumerate(KEYS.items())
    }
    return pa.table({"id": pa.array(range(count), pa.int64()), **keys, "text": pa.array([text] * count)})


def test_each_key_is_in_the_bucket_where_others_put_it(
    store: SqlManifestStore, harness: PaimonHarness
) -> None:
    """So a row of another writer is replaced, and not doubled. By keys of one column, and of all types."""
    from pypaimon import Schema
    from pypaimon.schema.table_schema import TableSchema
    from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor

    for kind, values in KEYS.items():
        keys = pa.record_batch({"key": pa.array(values, kind)}).slice(len(values) % 2)
        schema = Schema.from_pyarrow_schema(keys.schema, [], ["key"], {"bucket": "101"})
        table = SimpleNamespace(table_schema=TableSchema.from_schema(0, schema))
        expected = FixedBucketRowKeyExtractor(table.table_schema)._extract_buckets_batch(keys)
        assert list(row_buckets(table)._extract_buckets_batch(keys)) == expected, kind

    rows = rows_of_keys(40, "1")
    keys_of_table = [name for name in rows.column_names[::-1] if name != "text"]
    harness.create(rows.schema, primary_keys=keys_of_table, properties={"bucket": "7"})
    harness.append_rows(rows)
    query = Query(harness, options={"writeMode": "upsert", "keys": ", ".join(keys_of_table)}, store=store)
    query.run(store, query.batch(0), rows_of_keys(40, "2"))
    found = harness.read().sort_by("id")
    assert found["id"].to_pylist() == list(range(40))
    assert set(found["text"].to_pylist()) == {"2"}


# Commands ---------------------------------------------------------------------------------------------


def test_rows_that_wait_are_shown_without_the_columns_of_the_tree(
    upserts: Upserts, store: SqlManifestStore
) -> None:
    query = upserts.query
    manifest = query.prepare(store, query.batch(0), changes((1, 1, "a"), (2, 1)))
    table: Any = query.stored_table()
    (waiting,) = table.batch_rows(manifest, store)
    assert waiting.rows.to_pylist() == [{"id": 1, "n": 1, "text": "a"}]


# Java -------------------------------------------------------------------------------------------------


def java(harness: PaimonHarness, *commands: str) -> list[tuple[int, str]]:
    """Run commands in one JVM, as its start takes seconds."""
    with skipped_if_unreachable():
        found = paimon_java(harness.warehouse, "lake.rows", *commands)
    return [(int(row["id"]), row["text"]) for row in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late_rows", "changelog"), [("apply", "none"), ("ignore", "none"), ("apply", "lookup")]
)
def test_java_reads_each_row_once_before_and_after_its_compaction(
    upserts: Upserts, harness: PaimonHarness, late_rows: str, changelog: str
) -> None:
    """Of several buckets, with rows that Java has written. The compaction forgets deletions, and it writes
    the changelog.
    """
    properties = {"bucket": "4", "changelog-producer": changelog}
    upserts = upserts.with_options(lateRows=late_rows, tableProperties=json.dumps(properties))
    rows = dict.fromkeys(range(40), "0")
    upserts.run(0, changes(*[(row_id, 1, "0") for row_id in rows]))
    upserts.run(
        1, changes(*[(n, 2, "1") for n in range(0, 40, 2)]), changes(*[(n, 2) for n in range(1, 40, 4)])
    )
    upserts.run(2, changes((0, 3, "a"), (2, 4)), changes((0, 4, "b"), (2, 3, "c"), (99, 1)))
    rows.update(dict.fromkeys(range(0, 40, 2), "1"))
    rows = {n: text for n, text in rows.items() if n % 4 != 1 and n != 2} | {0: "b"}
    found = java(harness, "read", "compact", "read")
    assert sorted(found[: len(rows)]) == sorted(found[len(rows) :]) == sorted(rows.items())
    assert len(harness.committed()) == 4, "a file for each bucket"
    compacted = list(harness.snapshots().values())[-1]
    assert compacted["commitKind"] == "COMPACT"
    assert compacted.get("changelogRecordCount", 0) == (len(rows) if changelog == "lookup" else 0)
    upserts.run(3, changes((2, 2, "late"), (4, 5)), changes((6, 5, "new")))
    late = {} if late_rows == "ignore" else {2: "late"}
    rows = {n: text for n, text in rows.items() if n != 4} | {6: "new"} | late
    found = java(harness, "read", "append", "10", "delete", "8", "read")
    assert sorted(found[: len(rows)]) == sorted(rows.items())
    found = found[len(rows) :]
    if late_rows == "apply":  # by `sequence.field`, rows with NULL there are the oldest
        rows = {n: text for n, text in rows.items() if n != 8} | {10: "NULL"}
    assert sorted(found) == sorted(rows.items())
    upserts.run(4, changes((8, 6, "back"), (10, 6)))
    rows = {n: text for n, text in rows.items() if n != 10} | {8: "back"}
    assert sorted(java(harness, "compact", "remove-orphans", "read")) == sorted(rows.items())
    tombstones = list(harness.path.glob("_penstock/tombstones-*/*.parquet"))
    assert bool(tombstones) == (late_rows == "ignore"), "the clean-up of Paimon leaves them"
    upserts.check(*[(row_id, n, text) for row_id, n, text in harness.rows("id, n, text")])


@pytest.mark.slow
def test_java_finds_keys_of_all_types_in_their_buckets(
    store: SqlManifestStore, harness: PaimonHarness
) -> None:
    """And in its order: it writes each row again, and merges them, and none is doubled."""
    rows = rows_of_keys(60, "1")
    keys = [name for name in rows.column_names[1:] if name != "text"]
    options = {"writeMode": "upsert", "keys": ", ".join([*keys, "id"])}
    query = Query(harness, options=options, store=store)
    query = query.with_options(tableProperties=json.dumps({"bucket": "7"}))
    query.run(store, query.batch(0), rows)
    assert sorted(java(harness, "rewrite", "read")) == [(row_id, "1") for row_id in range(60)]
    query.run(store, query.batch(1), rows_of_keys(60, "2"))
    assert sorted(java(harness, "compact", "read")) == [(row_id, "2") for row_id in range(60)]
