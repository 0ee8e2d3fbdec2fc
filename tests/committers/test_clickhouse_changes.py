"""What is particular to changes by key in ClickHouse tables. See `conformance.upserts`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from servers.clickhouse import ClickHouse
from tests.support.changes_by_key import LATE, query, run, texts
from tests.support.clickhouse_table import ClickHouseHarness, killed_at_random, run_until_committed
from tests.support.random_changes import RandomChanges

from penstock import ConfigurationError, RetryableError, SchemaMismatchError
from penstock.committers.clickhouse import fence
from penstock.committers.clickhouse.committer import ClickHouseCommitter
from penstock.committers.contract import AlreadyCommitted
from penstock.committers.errors import TableNotSupportedError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.upserts import COLUMNS, changes
from penstock.testing.faults import crash_at

VERSION = "penstock_version UInt64 MATERIALIZED toUnixTimestamp64Micro(now64(6))"
DELETED = "penstock_deleted UInt8 MATERIALIZED 0"
ENGINE = "ENGINE = ReplacingMergeTree(penstock_version, penstock_deleted)"
TABLE = f"(id Int64, n Int64, text Nullable(String), {VERSION}, {DELETED}) {ENGINE} ORDER BY id"
BY_N = (
    f"(id Int64, n Int64, text Nullable(String), {DELETED}) ENGINE = ReplacingMergeTree(n, penstock_deleted)"
)

WAITING = """
SELECT name, engine_full FROM system.tables
WHERE database = '{db}' AND engine = 'ReplacingMergeTree' AND name != 'events'
"""


@pytest.fixture
def table(clickhouse_table: ClickHouseHarness) -> ClickHouseHarness:
    return clickhouse_table


def rows(table: ClickHouseHarness) -> list[Any]:
    return sorted(table.changed_rows())


# The table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "engine", "columns"),
    [
        (
            {},
            "ReplacingMergeTree(penstock_version, penstock_deleted) PARTITION BY (id % 2) ORDER BY (id)",
            ["id Int64", "n Nullable(Int64)", "text Nullable(String)", "penstock_version UInt64"],
        ),
        (
            LATE,
            "ReplacingMergeTree(n, penstock_deleted) PARTITION BY (id % 2) ORDER BY (id)",
            ["id Int64", "n Int64", "text Nullable(String)"],
        ),
    ],
)
def test_a_new_table_keeps_the_last_row_of_each_key(
    table: ClickHouseHarness,
    store: SqlManifestStore,
    options: dict[str, str],
    engine: str,
    columns: list[str],
) -> None:
    """Also for readers without FINAL, once its parts are merged. SELECT * shows the columns of the query."""
    of = query(table, partitionBy="id % 2", **options)
    run(store, of, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    run(store, of, changes((1, 2, "A"), (2, 2)), 1)

    ((engine_full,),) = table.sql(
        "SELECT engine_full FROM system.tables WHERE database = '{db}' AND name = 'events'"
    )
    found = table.sql("SELECT name, type FROM system.columns WHERE database = '{db}' AND table = 'events'")
    assert engine_full.startswith(engine)
    assert [f"{name} {kind}" for name, kind in found] == [*columns, "penstock_deleted UInt8"]
    assert sorted(table.sql("SELECT * FROM {db}.events FINAL")) == [(1, 2, "A"), (3, 1, "c")]
    table.sql("OPTIMIZE TABLE {db}.events FINAL")
    shown = "SELECT id, text FROM {db}.events WHERE penstock_deleted = 0 ORDER BY id"
    assert table.sql(shown) == [(1, "A"), (3, "c")]


@pytest.mark.parametrize(
    ("definition", "options", "problem"),
    [
        (
            "(id Int64, n Int64, text String) ENGINE = MergeTree ORDER BY id",
            {},
            "its engine is MergeTree, which keeps all rows of a key",
        ),
        (TABLE.replace(", penstock_deleted)", ")"), {}, "does not know from a column penstock_deleted"),
        (
            TABLE.replace(DELETED, "penstock_deleted UInt8"),
            {},
            "does not know from a column penstock_deleted UInt8 MATERIALIZED 0",
        ),
        (TABLE, LATE, "takes 'penstock_version' as the version of a row, and lateRows=ignore needs 'n'"),
        (
            f"{BY_N} ORDER BY id",
            {},
            "takes 'n' as the version of a row, and lateRows=apply needs 'penstock_version'",
        ),
        (
            TABLE.replace("penstock_version UInt64 MATERIALIZED", "penstock_version UInt64 DEFAULT"),
            {},
            "the type of its column penstock_version is not UInt64 MATERIALIZED",
        ),
        (TABLE.replace("ORDER BY id", "ORDER BY (id, n)"), {}, "its sorting key is id, n, and must be"),
        (TABLE.replace("ORDER BY id", "ORDER BY cityHash64(id)"), {}, "its sorting key is cityHash64"),
        (
            TABLE.replace("ORDER BY id", "PARTITION BY (id % 4, n % 2) ORDER BY id"),
            {},
            "its partitions depend on n, which is not in keys",
        ),
    ],
)
def test_a_table_that_cannot_be_changed_by_key_is_refused_with_one_that_can(
    table: ClickHouseHarness,
    store: SqlManifestStore,
    definition: str,
    options: dict[str, str],
    problem: str,
) -> None:
    table.sql(f"CREATE TABLE {{db}}.events {definition}")
    with pytest.raises(TableNotSupportedError) as refused:
        run(store, query(table, **options), changes((1, 1, "a")))

    assert problem in str(refused.value)
    assert "ORDER BY (`id`)" in str(refused.value)
    assert table.uncommitted() == []


def test_a_table_of_others_with_such_an_engine_is_changed(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """Also with names that are quoted, keys in another order, an index, and settings that clean up."""
    table.sql(
        f"CREATE TABLE {{db}}.events (id Int64, `a ``b` LowCardinality(String), n Int64, text String, "
        f"{VERSION}, {DELETED}, INDEX by_n n TYPE minmax) {ENGINE} PARTITION BY id % 2 "
        "ORDER BY (`a ``b`, id) SETTINGS min_age_to_force_merge_seconds = 9, "
        "min_age_to_force_merge_on_partition_only = 1, "
        "enable_replacing_merge_with_cleanup_for_min_age_to_force_merge = 1"
    )
    of = query(table, keys="id, a `b")
    run(store, of, texts(["x", "y"], "first").rename_columns([*COLUMNS.names, "a `b"]))
    with crash_at("clickhouse.decided"):
        run(store, of, texts(["x"], "second", 2).rename_columns([*COLUMNS.names, "a `b"]), 1)
    (waiting,) = table.sql(WAITING)
    of.target().token("q1")

    found = table.sql("SELECT `a ``b`, text FROM {db}.events FINAL ORDER BY 1")
    assert found == [("x", "second"), ("y", "first")]
    assert (
        "min_age_to_force_merge_seconds = 0" in waiting[1]
    )  # else a merge may remove deletions before the move


@pytest.mark.parametrize("expression", ["n % 2", "(id % 2, text)"])
def test_a_new_table_has_no_partitions_that_split_a_key(
    table: ClickHouseHarness, store: SqlManifestStore, expression: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"may only use the columns of keys, id:"):
        run(store, query(table, partitionBy=expression), changes((1, 1, "a")))
    assert table.tables() == []


def test_partitions_of_keys_of_all_types(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    schema = pa.schema([*COLUMNS, ("at", pa.timestamp("us", "UTC"))])
    times = [datetime(year, 1, 1, tzinfo=timezone.utc) for year in (1969, 2024)]
    given = pa.table({"id": [1, 1], "n": [1, 1], "text": ["a", "b"], "op": ["u", "u"], "at": times}, schema)
    of = query(table, keys="id, at", partitionBy="toYear(at)")
    run(store, of, given)
    run(store, of, given.slice(0, 1).set_column(3, "op", pa.array(["d"])), 1)

    assert rows(table) == [(1, 1, "b")]


# Versions of rows -----------------------------------------------------------------------------------


def test_later_changes_count_also_if_the_clock_of_the_server_goes_back(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """Also those of another query."""
    of = query(table)
    with mock.patch.object(fence, "NOW", fence.NOW + " + 3600000000"):
        run(store, of, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    run(store, of, changes((1, 2, "A"), (2, 2)), 1)
    assert rows(table) == [(1, 2, "A"), (3, 1, "c")]
    run(store, replace(of, query_id="q2"), changes((1, 2, "B"), (3, 2)))
    run(store, replace(of, query_id="q2"), changes((1, 3, "AA"), (3, 3)), 1)
    assert rows(table) == [(1, 3, "AA")]
    run(store, of, changes((1, 4), (3, 4, "again")), 2)
    assert rows(table) == [(3, 4, "again")]


def test_rows_of_other_writers_count_by_the_time_of_their_insert(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of = query(table)
    run(store, of, changes((1, 1, "a"), (2, 1), (3, 1, "c")))
    table.sql("INSERT INTO {db}.events (id, n, text) VALUES (1, 0, 'other'), (2, 0, 'other')")
    assert rows(table) == [(1, 0, "other"), (2, 0, "other"), (3, 1, "c")]
    run(store, of, changes((1, 2), (2, 2, "b")), 1)
    assert rows(table) == [(2, 2, "b"), (3, 1, "c")]


def test_tokens_of_earlier_versions_are_read() -> None:
    now = fence.ClickHouseFenceRow(3, "d", 4, "t", 7, "q1", "events", ("o",), "2026-01-01", "waiting")
    before = {name: value for name, value in asdict(now).items() if name not in ("replaces", "rows_version")}
    assert fence._row("q1_7", json.dumps(before)) == now


# Late rows ------------------------------------------------------------------------------------------


def test_late_rows_are_compared_by_the_column_of_the_order(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """Points in time, in the table of others. A row of the same time counts, and deletions stay."""
    table.sql(
        f"CREATE TABLE {{db}}.events (id Int64, n Int64, text Nullable(String), at DateTime64(6), {DELETED}) "
        "ENGINE = ReplacingMergeTree(at, penstock_deleted) ORDER BY id"
    )
    late = query(table, orderBy="AT", **LATE)

    def at(seconds: int, *some: Any) -> pa.Table:
        when = datetime.fromtimestamp(seconds, timezone.utc)
        column = pa.array([when] * len(some), pa.timestamp("us", "UTC"))
        return changes(*some).append_column("at", column)

    run(store, late, at(-5, (1, 1, "a"), (2, 1, "b")))
    run(store, late, at(10, (2, 2), (3, 2), (4, 2, "d")), 1)
    run(store, late, at(9, (1, 3, "A"), (2, 3, "late"), (3, 3, "late"), (4, 3, "late")), 2)
    assert rows(table) == [(1, 3, "A"), (4, 2, "d")]
    table.sql("OPTIMIZE TABLE {db}.events FINAL")
    run(store, late, at(10, (4, 4, "as late"), (3, 4, "as late")), 3)
    run(store, late, at(8, (2, 5, "late")), 4)
    assert rows(table) == [(1, 3, "A"), (3, 4, "as late"), (4, 4, "as late")]


def test_an_order_that_clickhouse_does_not_compare_is_refused(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    with pytest.raises(SchemaMismatchError, match="orderBy: 'text' is String in ClickHouse"):
        run(store, query(table, orderBy="text", **LATE), changes((1, 1, "a")))
    assert table.tables() == []


# Rows -----------------------------------------------------------------------------------------------


def test_rows_that_delete_need_no_values_where_the_table_has_no_null(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    table.sql(
        "CREATE TABLE {db}.events (id Int64, n Int64, text String DEFAULT 'none', "
        "kind LowCardinality(String), at DateTime64(6), price Decimal(10, 2), day Date32, "
        "list Array(Nullable(Int64)), counts Map(String, Nullable(Int64)), "
        f"{VERSION}, {DELETED}) {ENGINE} ORDER BY id"
    )
    more = {
        "kind": pa.array(["k", "k", None]),
        "at": pa.array([0, 0, None], pa.timestamp("us", "UTC")),
        "price": pa.array([1, 1, None], pa.decimal128(10, 2)),
        "day": pa.array([0, 0, None], pa.date32()),
        "list": pa.array([[1], [], None], pa.list_(pa.int64())),
        "counts": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    }
    given = changes((1, 1, "a"), (2, 1, "b"), (3, 1))
    for name, values in more.items():
        given = given.append_column(name, values)
    of = query(table)
    run(store, of, given)
    run(store, of, given.set_column(0, "id", pa.array([4, 5, 2])), 1)
    assert [row[0] for row in rows(table)] == [1, 4, 5]
    with pytest.raises(
        SchemaMismatchError,
        match="NULL in text, kind, at, price, day, list, counts, which the table declares",
    ):
        run(store, of, given.set_column(3, "op", pa.array(["u", "u", "u"])), 2)
    assert [row[0] for row in rows(table)] == [1, 4, 5]


NAN, MINUS_NAN = (float("nan"), -float("nan"))


@pytest.mark.parametrize(
    ("kind", "first", "second", "is_refused"),
    [
        (pa.float64(), NAN, MINUS_NAN, False),
        (pa.float64(), 0.0, -0.0, True),
        (pa.float32(), 0.0, -0.0, True),
        (pa.float64(), None, NAN, True),
        (pa.string(), None, "", True),
        (pa.string(), None, None, False),
        (pa.string(), "a", "a ", True),
        (pa.list_(pa.float64()), [0.0], [-0.0], True),
        (pa.list_(pa.string()), ["a", "b"], ["a', 'b"], True),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], [("a", 1)], False),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], [("a", None)], True),
    ],
)
def test_rows_of_one_key_are_equal_or_refused(
    table: ClickHouseHarness,
    store: SqlManifestStore,
    kind: pa.DataType,
    first: Any,
    second: Any,
    is_refused: bool,
) -> None:
    given = changes((1, 1, "a"), (1, 1, "a"), (1, 0, "b")).append_column(
        "value", pa.array([first, second, first], kind)
    )
    of = query(table)
    if is_refused:
        with pytest.raises(SchemaMismatchError, match="orderBy"):
            of.run(store, of.batch(0), given.slice(0, 1), given.slice(1))
        assert rows(table) == []
    else:
        of.run(store, of.batch(0), given.slice(0, 1), given.slice(1))
        assert rows(table) == [(1, 1, "a")]


def test_a_column_that_is_added_and_one_that_the_query_does_not_have(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """A row replaces the whole row: other columns get their defaults."""
    note = "note String DEFAULT upper(ifNull(text, ''))"
    table.sql(f"CREATE TABLE {{db}}.events {TABLE.replace('n Int64', f'n Int64, {note}')}")
    of = query(table, schemaEvolution="addColumns")
    run(store, of, changes((1, 1, "a"), (2, 1, "b")))
    table.sql("INSERT INTO {db}.events (id, n, text, note) VALUES (1, 1, 'a', 'mine'), (2, 1, 'b', 'mine')")
    lists = pa.list_(pa.int64())
    with pytest.raises(SchemaMismatchError, match="NULL in more, which is Array"):
        run(store, of, changes((1, 2, "c")).append_column("more", pa.array([None], lists)), 1)
    run(store, of, changes((1, 2, "c"), (3, 2)).append_column("more", pa.array([[7], None], lists)), 1)

    found = table.sql("SELECT id, note, more FROM {db}.events FINAL ORDER BY id")
    assert found == [(1, "C", [7]), (2, "mine", [])]


# The move -------------------------------------------------------------------------------------------


def test_parts_that_a_killed_server_has_on_both_sides_count_once(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """Another writer has replaced a row since, and a merge has removed rows that were moved."""
    of = query(table, partitionBy="id % 2")
    run(store, of, changes(*((number, 1, "old") for number in range(8))))
    batch = changes(*((number, 2, "new") for number in range(6)), (6, 2), (7, 2))
    manifest = of.build(store, of.batch(1), batch)
    with crash_at("clickhouse.decided"):
        of.target().commit(manifest)
    (waiting,) = table.sql(WAITING)
    table.sql(f"ALTER TABLE {{db}}.events ATTACH PARTITION ID '0' FROM {{db}}.{waiting[0]}")
    table.sql("INSERT INTO {db}.events (id, n, text) VALUES (0, 3, 'other')")
    table.sql("OPTIMIZE TABLE {db}.events FINAL")
    expected = [(0, 3, "other"), *((number, 2, "new") for number in range(1, 6))]
    assert rows(table) != expected
    of.target().token("q1")

    assert rows(table) == expected
    assert isinstance(of.target().commit(manifest), AlreadyCommitted)
    assert rows(table) == expected
    assert table.uncommitted() == []


@pytest.mark.parametrize("point", ["clickhouse.gathered", "clickhouse.decided", "clickhouse.moved"])
def test_changes_that_were_interrupted_are_applied_once(
    point: str, table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """Nobody names what a crash before the decision leaves, so clean-up drops it."""
    of = query(table, partitionBy="id % 4")
    run(store, of, changes(*((number, 1, "old") for number in range(8))))
    with crash_at(point):
        run(store, of, changes(*((number, 2) for number in range(4)), (9, 2, "new")), 1)
    if point == "clickhouse.gathered":
        (gathered,) = table.sql(WAITING)
        stored: Any = of.stored_table()
        assert gathered[0] in {file.path.rpartition(".")[2] for file in stored.cleanable(store).files()}
    of.run(store, of.batch(1), changes(*((number, 2) for number in range(4)), (9, 2, "new")), run_id="again")

    assert rows(table) == [*((number, 1, "old") for number in range(4, 8)), (9, 2, "new")]


def test_a_task_whose_changes_are_not_all_there_is_not_committed(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of = query(table)
    manifest = of.build(store, of.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    (staged,) = table.uncommitted()
    table.sql(f"ALTER TABLE {{db}}.{staged} DELETE WHERE id = 1 SETTINGS mutations_sync = 1")
    target = of.target()
    assert isinstance(target, ClickHouseCommitter)
    with pytest.raises(RetryableError, match="has 1 of the 2 rows"):
        target.commit(manifest)
    assert rows(table) == []


def test_a_batch_of_many_tasks_and_columns(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    """Its statements are longer than ClickHouse parses by default."""
    wide = changes((1, 1, "a"), (1, 2, "b"), (2, 1, "c"))
    for number in range(12):
        wide = wide.append_column(f"{number} {'x' * 2000}", pa.array([1, 2, 3]))
    of = query(table)
    of.run(store, of.batch(0), *(wide.slice(number % 3, 1) for number in range(12)))
    assert rows(table) == [(1, 2, "b"), (2, 1, "c")]


def test_rows_that_wait_are_shown(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    of = query(table)
    manifest = of.prepare(store, of.batch(0), changes((1, 1, "a"), (2, 1)))
    stored: Any = of.stored_table()
    (waiting,) = stored.batch_rows(manifest, store)
    assert waiting.rows.to_pylist() == [
        {"id": 1, "n": 1, "text": "a", "penstock_deletes": False},
        {"id": 2, "n": 1, "text": None, "penstock_deletes": True},
    ]


def test_rows_of_a_task_wait_as_they_were_sent(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    """No merge removes rows of a key from a staging table: the commit counts them."""
    of = query(table)
    manifest = of.build(store, of.batch(0), changes((1, 1, "a"), (1, 2, "b"), (1, 3)))
    (staged,) = table.uncommitted()
    table.sql(f"OPTIMIZE TABLE {{db}}.{staged} FINAL")
    of.target().commit(manifest)
    assert rows(table) == []


@pytest.mark.campaign
@pytest.mark.parametrize("options", [{}, LATE], ids=["apply", "ignore"])
def test_changes_are_applied_once_however_the_server_is_killed(
    table: ClickHouseHarness,
    store: SqlManifestStore,
    clickhouse_server: ClickHouse,
    options: dict[str, str],
) -> None:
    random_changes = RandomChanges(files=40, rows_per_file=50, keys=120)
    of = query(table, partitionBy="id % 4", **options)
    first, *others = random_changes.batches()
    run(store, of, first)
    with killed_at_random(clickhouse_server, 11):
        for batch_id, batch in enumerate(others, 1):
            run_until_committed(store, of, batch_id, batch.slice(0, 25), batch.slice(25))
    assert rows(table) == random_changes.expected(ignores_late=bool(options))
