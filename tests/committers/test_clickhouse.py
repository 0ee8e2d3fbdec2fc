"""What is particular to `penstock.clickhouse`. The promises of all destinations are in the conformance
suite."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from servers.certificates import make_certificates
from servers.clickhouse import ClickHouse, clickhouse
from tests.support.clickhouse_table import ClickHouseHarness, killed_at_random, run_until_committed

from penstock import ConfigurationError, RetryableError, SchemaMismatchError
from penstock.committers.clickhouse import fence
from penstock.committers.clickhouse.address import ClickHouseAddress, parse_table_name, settings_of
from penstock.committers.clickhouse.committer import ClickHouseCommitter
from penstock.committers.clickhouse.connection import ClickHouseError
from penstock.committers.clickhouse.dialect import part_number
from penstock.committers.clickhouse.types import holds, sql_type
from penstock.committers.contract import AlreadyCommitted, Committed
from penstock.committers.database.contract import Cursor
from penstock.committers.errors import (
    AccessRefusedError,
    CommitStateUnknownError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query, ids
from penstock.testing.faults import crash_at

TIMES = pa.timestamp("us", "UTC")
LIKE = "(id Nullable(Int64), penstock_part UInt64 MATERIALIZED 0) ENGINE = MergeTree ORDER BY tuple()"


@pytest.fixture
def table(clickhouse_table: ClickHouseHarness) -> ClickHouseHarness:
    return clickhouse_table


def query(table: ClickHouseHarness, **options: str) -> Query:
    return Query(table, "q1", options)


def run(store: SqlManifestStore, of: Query, *tasks: pa.Table, batch_id: int = 0) -> None:
    of.run(store, of.batch(batch_id), *tasks)


# Values and columns ---------------------------------------------------------------------------------


def test_values_are_read_as_they_were_written(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    big = 2**63 - 1
    days = [date(1900, 1, 1), date(2299, 12, 31)]
    times = [
        datetime(1900, 1, 1, tzinfo=timezone.utc),
        datetime(2299, 12, 31, 23, 59, 59, 999999, timezone.utc),
    ]
    rows = pa.table(
        {
            "id": pa.array([big, -big - 1]),
            "flag": pa.array([True, None]),
            "tiny": pa.array([127, -128], pa.int8()),
            "text": pa.array(["a\0b'%s%%\\", ""]),
            "bytes": pa.array([b"\0\xff", b""], pa.binary()),
            "day": pa.array(days, pa.date32()),
            "double": pa.array([float("nan"), 5e-324]),
            "float": pa.array([1.1, float("-inf")], pa.float32()),
            "price": pa.array(
                [Decimal("-12345678901234567890123456789.123456789"), None], pa.decimal128(38, 9)
            ),
            "at": pa.array(times, TIMES),
            "numbers": pa.array([[1, None], []], pa.list_(pa.int64())),
            "counts": pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    run(store, query(table), rows)
    run(store, query(table), rows.slice(0, 1), batch_id=1)  # the types are those of the table now
    found = table.sql(
        "SELECT DISTINCT toString(id), flag, tiny, text, hex(bytes), toString(day), toString(double), "
        "toString(float), "
        "toString(price), toString(at), numbers, counts FROM {db}.events ORDER BY id DESC"
    )
    first, second = found
    assert first[:5] == (str(big), True, 127, "a\0b'%s%%\\", "00FF")
    assert first[5:10] == (
        "1900-01-01", "nan", "1.1", "-12345678901234567890123456789.123456789", "1900-01-01 00:00:00.000000"
    )  # fmt: skip
    assert first[10:] == ([1, None], {"a": 1, "b": None})
    assert second[:5] == (str(-big - 1), None, -128, "", "")
    assert second[5:] == ("2299-12-31", "5e-324", "-inf", None, "2299-12-31 23:59:59.999999", [], {})


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([datetime(2300, 1, 1, tzinfo=timezone.utc)], TIMES), "ends before 2300-01-01"),
        (pa.array([[date(1899, 12, 31)]], pa.list_(pa.date32())), "begins with 1900-01-01"),
        (pa.array([None], pa.list_(pa.int64())), "NULL in x, which"),
        (pa.array([[None]], pa.list_(pa.list_(pa.int64()))), "NULL inside of x"),
        (pa.array([0], pa.timestamp("us")), "cannot store without loss"),
        (pa.array([{"a": 1}]), "cannot store without loss"),
    ],
)
def test_what_clickhouse_would_change_is_refused(
    column: pa.Array, why: str, table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    with pytest.raises(SchemaMismatchError, match=why):
        run(store, query(table), pa.table({"x": column}))
    assert table.uncommitted() == []


def test_columns_of_an_existing_table_take_what_they_hold(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    table.sql(
        "CREATE TABLE {db}.events (id Int64, kind LowCardinality(String), at DateTime64(6), n UInt8, "
        "made DateTime DEFAULT now(), twice Int64 MATERIALIZED id * 2, penstock_part UInt64 MATERIALIZED 0) "
        "ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (kind, id) TTL made + INTERVAL 1 DAY"
    )
    rows = pa.table({"id": [7], "kind": ["a"], "at": pa.array([0], TIMES)})
    run(store, query(table), rows)
    found = table.sql("SELECT id, twice, kind, toUnixTimestamp(at), n, made > now() - 60 FROM {db}.events")
    assert found == [(7, 14, "a", 0, 0, 1)]
    with pytest.raises(SchemaMismatchError, match="NULL in kind"):
        run(store, query(table), rows.set_column(1, "kind", [pa.array([None], pa.string())]), batch_id=1)


DAY, TIME = date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("column", "values", "others"),
    [
        ("Date", [DAY, date(2149, 6, 6)], [date(1969, 12, 31), date(2149, 6, 7)]),
        (
            "DateTime",
            [TIME, datetime(2106, 2, 6, 23, 59, 59, tzinfo=timezone.utc)],
            [TIME.replace(microsecond=1), TIME - timedelta(seconds=1), TIME.replace(year=2107)],
        ),
        ("DateTime('Asia/Tokyo')", [TIME], [TIME.replace(microsecond=999_999)]),
        (
            "DateTime64(3, 'UTC')",
            [TIME - timedelta(milliseconds=1), TIME.replace(year=1900)],
            [TIME + timedelta(microseconds=999), TIME - timedelta(microseconds=1)],
        ),
        ("DateTime64(0)", [TIME], [TIME.replace(microsecond=100_000)]),
        ("DateTime64(9)", [TIME.replace(microsecond=1), TIME.replace(year=1900)], [TIME.replace(year=2263)]),
    ],
)
def test_a_smaller_type_of_the_table_gets_the_values_that_it_stores(
    column: str, values: list[Any], others: list[Any], table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """The server would take the others, and change them."""
    table.sql(
        f"CREATE TABLE {{db}}.events (x Nullable({column}), penstock_part UInt64 MATERIALIZED 0) "
        "ENGINE = MergeTree ORDER BY tuple()"
    )
    kind = TIMES if isinstance(values[0], datetime) else pa.date32()
    of = query(table)
    run(store, of, pa.table({"x": pa.array([*values, None], kind)}))
    for value in others:
        with pytest.raises(SchemaMismatchError, match=r"is no Date|does not store"):
            run(store, of, pa.table({"x": pa.array([value], kind)}), batch_id=1)
    moment = "toUnixTimestamp64Micro(toDateTime64(x, 6))" if kind == TIMES else "x"
    given = {str((value - TIME) // timedelta(microseconds=1) if kind == TIMES else value) for value in values}
    found = table.sql(f"SELECT toString({moment}) FROM {{db}}.events")
    assert {text for (text,) in found} == {*given, None}
    assert len(found) == len(values) + 1


def test_types_hold_only_what_they_keep() -> None:
    assert sql_type(pa.map_(pa.string(), pa.list_(pa.int8()))) == "Map(String, Array(Nullable(Int8)))"
    assert holds("Decimal(20, 4)", pa.decimal128(10, 2))
    assert not holds("Decimal(10, 2)", pa.decimal128(10, 3))
    assert not holds("Int32", pa.int64())
    assert not holds("UInt64", pa.int64())
    assert not holds("DateTime64(6)", pa.date32())
    assert not holds("Float64", pa.int64())


def test_values_of_a_column_may_expire(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    table.sql(
        "CREATE TABLE {db}.events (id Int64, at DateTime64(6), n Int64 TTL toDateTime(at) + INTERVAL 1 DAY, "
        "penstock_part UInt64 MATERIALIZED 0) ENGINE = MergeTree ORDER BY id"
    )
    run(store, query(table), pa.table({"id": [7], "at": pa.array([0], TIMES), "n": [1]}))
    assert table.ids() == [7]


def test_a_table_is_created_with_keys_and_partitions(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    keyed = query(table, sortingKey="id, cityHash64(text)", partitionBy="id % 2")
    run(store, keyed, pa.table({"id": [0, 1, None], "text": ["a", None, "c"]}))
    found = table.sql(
        "SELECT sorting_key, partition_key FROM system.tables WHERE database = '{db}' AND name = 'events'"
    )
    assert found == [("id, cityHash64(text)", "(id % 2)")]
    assert table.sql("SELECT count() FROM {db}.events") == [(3,)]


def test_a_task_sends_its_rows_in_blocks_and_each_has_a_number(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    small = query(table, bufferSize="64kb")
    run(store, small, pa.concat_tables([ids(*range(10_000 * n, 10_000 * n + 10_000)) for n in range(4)]))
    ((rows, parts, others),) = table.sql(
        "SELECT uniqExact(id), uniqExact(penstock_part), countIf(penstock_part = 0) FROM {db}.events"
    )
    assert rows == 40_000
    assert parts == 4
    assert others == 0


# What is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create", "why"),
    [
        (LIKE.replace("MergeTree", "ReplacingMergeTree"), "its engine is ReplacingMergeTree"),
        ("(id Int64) ENGINE = Memory", "its engine is Memory"),
        ("(id Int64) ENGINE = MergeTree ORDER BY id", "ADD COLUMN penstock_part UInt64 MATERIALIZED 0"),
    ],
)
def test_a_table_that_cannot_keep_the_promise_is_refused(
    create: str, why: str, table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    table.sql(f"CREATE TABLE {{db}}.events {create}")
    with pytest.raises(TableNotSupportedError, match=why):
        run(store, query(table), ids(1))


def test_a_table_with_a_materialized_view_is_refused(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    table.sql(f"CREATE TABLE {{db}}.events {LIKE}")
    table.sql(
        "CREATE MATERIALIZED VIEW {db}.view ENGINE = MergeTree ORDER BY tuple() AS SELECT id FROM {db}.events"
    )
    with pytest.raises(TableNotSupportedError, match="materialized views read its INSERTs: view"):
        run(store, query(table), ids(1))


def test_a_wrong_password_is_named_and_not_shown(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    wrong = {**table.options, "url": table.options["url"].replace("geheim-4711", "other-4712")}
    with pytest.raises(AccessRefusedError, match="AUTHENTICATION_FAILED") as failure:
        run(store, Query(table, "q1", destination_options=wrong), ids(1))
    assert "other-4712" not in str(failure.value)


def test_the_certificate_of_the_server_is_verified(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path)
    with clickhouse(tmp_path) as server:
        table = ClickHouseHarness(server)
        with pytest.raises(AccessRefusedError, match=r"(?i)certificate.verify.failed"):
            run(store, query(table), ids(1))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        run(store, query(table), ids(1), ids(2))
        assert sorted(table.ids()) == [1, 2]


@pytest.mark.parametrize(
    "url",
    [
        "clickhouse://h/d",
        "http://h:8123",
        "http://h:8123/a/b",
        "http://h:99999/d",
        "http:///d",
        "http://h/d?x=1",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must"):
        settings_of(url)


def test_an_address_has_neither_user_nor_password() -> None:
    settings = settings_of("https://me:p%40ss@h.example/lake%20one")
    address = ClickHouseAddress.of(settings, parse_table_name("`my table`"))
    assert address.uri == "clickhouse://h.example:8443/lake%20one/my%20table"
    assert ClickHouseAddress.parse(address.uri) == address
    assert (settings.user, settings.password) == ("me", "p@ss")
    assert "p@ss" not in repr(settings)
    assert ClickHouseAddress.of(settings, parse_table_name("db.events")).sql == "`db`.`events`"
    with pytest.raises(ConfigurationError, match="is not the address"):
        ClickHouseAddress.parse("mysql://h:1/d/t")


# The decision ---------------------------------------------------------------------------------------


def committer(of: Query) -> ClickHouseCommitter:
    target = of.target()
    assert isinstance(target, ClickHouseCommitter)
    return target


def test_of_many_drivers_one_replaces_the_token(table: ClickHouseHarness, store: SqlManifestStore) -> None:
    """All know the same token. Each tries to replace it 5 times."""
    of = query(table)
    run(store, of, ids(0))
    target, won = committer(of), list[tuple[int, str]]()
    address, server = target._address, target._server
    row = target._fence.lock(server.connect().cursor(), address, "q1", "")
    barrier = threading.Barrier(4)

    def drive(name: str) -> None:
        cursor, now = server.connect().cursor(), row
        barrier.wait(30)
        for number in range(5):
            following = target._fence.next_row(now, of.batch(1), name, (), "")
            if target._fence.advance(cursor, address, now, following):
                won.append((number, name))
            now = target._fence.next_row(now, of.batch(1), "", (), "")

    threads = [threading.Thread(target=drive, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in won) == list(range(5))


def test_an_alter_that_was_lost_cannot_decide_later(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """Its request waits somewhere, and arrives after the next commit has failed."""
    of, statements = query(table), list[str]()
    run(store, of, ids(0))
    late = of.build(store, of.batch(1), ids(1))
    losing = mock.patch.object(fence, "send", _losing(statements, fence.send))
    with losing, pytest.raises(RetryableError, match="could not be committed"):
        of.target().commit(late)
    with pytest.raises(AssertionError, match=r"NOT_FOUND_COLUMN|NO_SUCH_COLUMN"):
        table.sql(statements[0])
    assert isinstance(of.target().commit(late), Committed)
    assert sorted(table.ids()) == [0, 1]


def _losing(statements: list[str], send: Callable[..., None]) -> Callable[..., None]:
    def lose_first(cursor: Cursor, statement: str) -> None:
        statements.append(statement)
        if len(statements) == 1:
            raise ClickHouseError("TimeoutError: timed out")
        send(cursor, statement)

    return lose_first


def test_a_server_that_dies_in_the_decision_leaves_it_unknown_and_recovery_finds_out(
    table: ClickHouseHarness, store: SqlManifestStore, clickhouse_server: ClickHouse
) -> None:
    of = query(table)
    run(store, of, ids(0))
    manifest = of.prepare(store, of.batch(1), ids(1))

    def kill(cursor: Cursor, statement: str) -> None:
        real(cursor, statement)
        clickhouse_server.kill()
        real(cursor, "SELECT 1")

    real = fence.send
    killing = mock.patch.object(fence, "send", kill)
    with killing, pytest.raises(CommitStateUnknownError, match="may or may not be in"):
        of.target().commit(manifest)
    clickhouse_server.start()
    run(store, of, ids(1), batch_id=1)
    assert sorted(table.ids()) == [0, 1]
    assert table.uncommitted() == []


# The move -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["clickhouse.decided", "clickhouse.moved"])
def test_who_reads_the_token_moves_the_rows(
    point: str, table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of = query(table, partitionBy="id % 4")
    manifest = of.build(store, of.batch(0), ids(*range(8)), ids(*range(8, 16)))
    with crash_at(point):
        of.target().commit(manifest)
    assert len(table.ids()) == (0 if point == "clickhouse.decided" else 4)
    token = of.target().token("q1")
    assert token is not None
    assert token.batch_id == 0
    assert sorted(table.ids()) == list(range(16))
    assert isinstance(of.target().commit(manifest), AlreadyCommitted)
    assert table.uncommitted() == []


def _decided(table: ClickHouseHarness, store: SqlManifestStore) -> tuple[Query, str]:
    """A batch whose rows wait for their move, in two parts for each of 3 partitions; and its table."""
    of = query(table, partitionBy="id % 3")
    with crash_at("clickhouse.decided"):
        of.target().commit(of.build(store, of.batch(0), ids(*range(9)), ids(*range(9, 18))))
    ((comment,),) = table.sql(
        "SELECT comment FROM system.columns WHERE database = '{db}' AND comment LIKE '%rows_in%'"
    )
    return of, comment.split('"rows_in": "')[1].split('"')[0]


def test_parts_that_a_killed_server_has_on_both_sides_arrive_once(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    """All parts of one partition, one of the two of another; and they were merged since."""
    of, waiting = _decided(table, store)
    table.sql(f"ALTER TABLE {{db}}.events ATTACH PARTITION ID '0' FROM {{db}}.{waiting}")
    table.sql("CREATE TABLE {db}.one AS {db}.events")
    table.sql(f"ALTER TABLE {{db}}.one ATTACH PARTITION ID '1' FROM {{db}}.{waiting}")
    (first, _) = table.sql(
        "SELECT name FROM system.parts WHERE database = '{db}' AND table = 'one' AND active"
    )
    table.sql(f"ALTER TABLE {{db}}.one DROP PART '{first[0]}'")
    table.sql("ALTER TABLE {db}.events ATTACH PARTITION ID '1' FROM {db}.one")
    table.sql("DROP TABLE {db}.one")
    table.append(100)
    table.sql("OPTIMIZE TABLE {db}.events FINAL")
    assert len(table.ids()) == 10
    run(store, of, ids(18), batch_id=1)
    assert sorted(table.ids()) == [*range(19), 100]


def test_rows_that_were_deleted_meanwhile_are_left_to_an_operator(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of, waiting = _decided(table, store)
    table.sql(f"ALTER TABLE {{db}}.events ATTACH PARTITION ID '0' FROM {{db}}.{waiting}")
    table.sql("ALTER TABLE {db}.events DELETE WHERE id = 0 SETTINGS mutations_sync = 1")
    with pytest.raises(
        TableChangedError, match=f"has 2 of 3 rows .*somebody has deleted rows since.*{waiting}"
    ):
        of.target().token("q1")


def test_a_table_that_was_created_again_gets_no_rows_of_the_batch_before(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of, _ = _decided(table, store)
    table.recreate()
    of.target().token("q1")
    assert table.ids() == []


def test_clean_up_leaves_rows_that_wait_for_their_move(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of, waiting = _decided(table, store)
    stored: Any = of.stored_table()
    files = {file.path.rpartition(".")[2] for file in stored.cleanable(store).files()}
    assert files == set(table.uncommitted()) - {waiting}
    assert waiting in table.uncommitted()


def test_a_task_whose_rows_are_not_all_there_is_not_committed(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of = query(table)
    manifest = of.build(store, of.batch(0), ids(1, 2))
    (staged,) = table.uncommitted()
    table.sql(f"ALTER TABLE {{db}}.{staged} DELETE WHERE id = 1 SETTINGS mutations_sync = 1")
    with pytest.raises(RetryableError, match="has 1 of the 2 rows"):
        of.target().commit(manifest)
    assert table.ids() == []


def test_a_column_that_was_added_while_tasks_wrote_is_no_problem(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of = query(table)
    manifest = of.build(store, of.batch(0), ids(1))
    table.sql("ALTER TABLE {db}.events ADD COLUMN more String DEFAULT 'x' FIRST")
    of.target().commit(manifest)
    assert table.sql("SELECT id, more FROM {db}.events") == [(1, "x")]


# Kills of the server ---------------------------------------------------------------------------------


@pytest.mark.campaign
def test_a_server_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    table: ClickHouseHarness, store: SqlManifestStore, clickhouse_server: ClickHouse
) -> None:
    of, batches = query(table, partitionBy="id % 4"), 40
    run(store, of, ids(*range(16)))
    with killed_at_random(clickhouse_server, 7):
        for batch_id in range(1, batches):
            first = 16 * batch_id
            run_until_committed(
                store, of, batch_id, ids(*range(first, first + 8)), ids(*range(first + 8, first + 16))
            )
    assert sorted(table.ids()) == list(range(16 * batches))


@pytest.mark.campaign
def test_readers_see_a_partition_of_a_batch_as_a_whole(
    table: ClickHouseHarness, store: SqlManifestStore
) -> None:
    of, counts, stop = query(table, partitionBy="id % 2"), set(), threading.Event()
    run(store, of, ids())

    def watch() -> None:
        while not stop.is_set():
            for partition, rows in table.sql("SELECT id % 2, count() FROM {db}.events GROUP BY 1"):
                counts.add((partition, rows))

    run(store, of, *[ids(*range(20 * task, 20 * task + 20)) for task in range(4)], batch_id=1)
    watcher = threading.Thread(target=watch)
    watcher.start()
    for batch_id in range(2, 12):
        tasks = [ids(*range(80 * batch_id + 20 * task, 80 * batch_id + 20 * task + 20)) for task in range(4)]
        run(store, of, *tasks, batch_id=batch_id)
    stop.set()
    watcher.join()
    assert counts
    assert all(rows % 40 == 0 for _, rows in counts)


# Another reader --------------------------------------------------------------------------------------

_READER = """
import sys
from chdb import session
opened = session.Session(sys.argv[1])
print(opened.query(f"SELECT count(), sum(id) FROM {sys.argv[2]}.events", "TabSeparated"))
"""


def test_an_engine_that_did_not_write_reads_the_files(
    table: ClickHouseHarness, store: SqlManifestStore, clickhouse_server: ClickHouse
) -> None:
    """After a kill, in a process of its own."""
    run(store, query(table), ids(*range(100)), ids(*range(100, 200)))
    clickhouse_server.kill()
    try:
        command = [sys.executable, "-c", _READER, str(clickhouse_server.data), table.database]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        clickhouse_server.start()
    assert found.stdout.split() == ["200", str(sum(range(200)))], found.stderr


def test_the_number_of_an_insert_is_never_that_of_other_writers() -> None:
    numbers = {part_number(name, number) for name in ("a", "b") for number in range(1000)}
    assert len(numbers) == 2000
    assert 0 not in numbers
