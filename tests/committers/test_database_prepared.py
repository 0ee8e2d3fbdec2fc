"""`commit=prepared`: tasks prepare transactions, and each row comes exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from servers.mysql import MariaDB, MySQL, running
from servers.postgres import postgres
from tests.support.prepared_tables import PreparedInMySql, PreparedInPostgres, PreparedTables
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.contract import ManifestState
from penstock.committers.database.cleanup import DatabaseCleanableTable, name_parser
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.planning.plan import plan_batch_write
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at

MYSQL = pytest.param("mysql", marks=pytest.mark.campaign)
"""Has a binary log unless it is told otherwise."""
BINARY_LOG = "--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1"
BATCHES = 25


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], PreparedTables]]:
    """The servers, which only this file uses, since it kills them."""
    with ExitStack() as stack:

        @cache
        def started(kind: str) -> PreparedTables:
            if kind == "postgres":
                return PreparedInPostgres(stack.enter_context(postgres()))
            options = BINARY_LOG if kind == "mariadb with a binary log" else ()
            server = MySQL if kind == "mysql" else MariaDB
            with skipped_if_unreachable():
                return PreparedInMySql(stack.enter_context(running(server, *options)))

        yield started


@pytest.fixture(params=["postgres", "mariadb", MYSQL])
def tables(request: pytest.FixtureRequest, servers: Callable[[str], PreparedTables]) -> PreparedTables:
    return servers(request.param)


@pytest.fixture
def query(tables: PreparedTables) -> Any:
    return tables.new_query()


@pytest.fixture
def empty_store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    """A store as after the first one was lost."""
    with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        yield store


def test_rows_are_written_once_and_nothing_is_left(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1, 2), ids(3), ids()])
    assert query.ids() == []
    assert len(tables.kept(query)) == 2
    query.commit(store, messages)

    assert query.ids() == [1, 2, 3]
    assert tables.left(query) == []
    query.run(store, query.batch(1), ids(4))
    assert query.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "point",
    [
        "write.files_closed",
        "prepare.start",
        "prepare.done",
        "commit.start",
        "prepared.decided",
        "prepared.ended",
        "commit.landed",
        "mark.done",
    ],
)
@pytest.mark.parametrize("has_store", [pytest.param(True, marks=pytest.mark.campaign), False])
def test_a_crash_at_each_step_loses_and_doubles_nothing(
    tables: PreparedTables,
    query: Any,
    store: SqlManifestStore,
    empty_store: SqlManifestStore,
    point: str,
    has_store: bool,
) -> None:
    query.run(store, query.batch(0), ids(0))
    with crash_at(point):
        query.run(store, query.batch(1), ids(1, 2), ids(3))
    again = store if has_store else empty_store
    query.run(again, query.batch(1), ids(1), ids(2), ids(3), run_id="r2")
    assert query.ids() == [0, 1, 2, 3]
    query.run(again, query.batch(2), ids(4), run_id="r2")

    assert query.ids() == [0, 1, 2, 3, 4]
    assert tables.left(query) == []
    assert not again.pending(query.stream)


def test_a_killed_server_keeps_what_tasks_have_prepared(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1, 2), ids(3)])
    tables.server.kill()
    tables.server.start()
    with crash_at("prepared.ended"):
        query.commit(store, messages)
    tables.server.kill()
    tables.server.start()
    query.run(store, query.batch(1), ids(4))

    assert query.ids() == [1, 2, 3, 4]
    assert tables.left(query) == []


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mariadb with a binary log", MYSQL])
def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    servers: Callable[[str], PreparedTables],
    store: SqlManifestStore,
    record_property: Callable[[str, object], None],
    kind: str,
) -> None:
    """At any time: while tasks write or prepare, between the phases, and while transactions are ended."""
    tables, random, is_over = servers(kind), Random(kind), threading.Event()
    query, kills, failures = tables.new_query(), 0, 0

    def kill() -> None:
        nonlocal kills
        while not is_over.wait(random.random() * random.choice((0.3, 2, 8))):
            tables.server.kill()
            kills += 1
            tables.server.start()

    killing = threading.Thread(target=kill)
    query.run(store, query.batch(0), ids(0))
    killing.start()
    try:
        for number in range(1, BATCHES):
            rows = [ids(*(10 * number + one for one in task)) for task in ((0, 1), (2,), (3, 4, 5))]
            for _ in range(300):
                try:
                    query.run(store, query.batch(number), *rows, run_id=f"k{failures}")
                    break
                except RetryableError:
                    failures += 1
                    time.sleep(0.1)  # while the server starts, it answers at once
            else:
                pytest.fail(f"batch {number} is not written in 300 attempts")
    finally:
        is_over.set()
        killing.join()
    query.run(store, query.batch(BATCHES), ids(1), run_id="last")

    record_property("kills and failed attempts", (kills, failures))
    assert kills > 5
    assert failures > 5
    assert query.ids() == [0, 1, *(10 * number + one for number in range(1, BATCHES) for one in range(6))]
    assert tables.left(query) == []


def test_orphans_are_rolled_back_before_the_tasks_run(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    """With a unique index, an orphan keeps the replay from writing its keys."""
    query.run(store, query.batch(0), ids(0))
    query.sql("CREATE UNIQUE INDEX one ON events (id)")
    query.write(query.plan(store, query.batch(1)), [ids(1), ids(2)])
    assert len(tables.kept(query)) == 2
    query.run(store, query.batch(1), ids(1, 2), run_id="r2")

    assert query.ids() == [0, 1, 2]
    assert tables.left(query) == []


def test_a_driver_whose_transactions_were_rolled_back_commits_nothing(
    tables: PreparedTables, query: Any, store: SqlManifestStore, empty_store: SqlManifestStore
) -> None:
    late = query.plan(store, query.batch(0))
    messages = query.write(late, [ids(1), ids(2)])
    query.plan(empty_store, query.batch(0))
    assert tables.kept(query) == []
    with pytest.raises(RetryableError, match="missing"):
        query.commit(store, messages)
    query.run(store, query.batch(0), ids(1), ids(2), run_id="r2")

    assert query.ids() == [1, 2]


def test_a_driver_that_is_paused_while_it_rolls_back_takes_nothing_from_a_commit(
    tables: PreparedTables, query: Any, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict "roll back" is stored before the roll back: a commit in between is refused."""
    statements = type(query.target()._dialect.prepared)
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    real = statements.end
    refused: list[bool] = []

    def paused(self: Any, connection: Any, transaction_id: str, *, commits: bool) -> None:
        if not commits and not refused:
            refused.append(True)
            with pytest.raises(RetryableError, match="rolled back"):
                query.commit(store, messages)
        real(self, connection, transaction_id, commits=commits)

    monkeypatch.setattr(statements, "end", paused)
    target: Any = query.target()
    target.roll_back_attempts(query.query_id)
    assert refused
    query.run(store, query.batch(0), ids(1), ids(2), run_id="r2")

    assert query.ids() == [1, 2]
    assert tables.left(query) == []


def test_another_process_may_end_the_transactions(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    """A repeated COMMIT PREPARED finds nothing; the row that the task has written tells the outcome."""
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    transactions = tables.kept(query)
    with crash_at("prepared.decided"):
        query.commit(store, messages)
    for gid in transactions:
        tables.end(query, gid, "COMMIT")
    query.run(store, query.batch(1), ids(3))

    assert query.ids() == [1, 2, 3]
    assert tables.left(query) == []


def test_rows_that_somebody_has_rolled_back_are_reported(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    gid, _ = tables.kept(query)
    with crash_at("prepared.decided"):
        query.commit(store, messages)
    tables.end(query, gid, "ROLLBACK")
    for _ in range(2):
        with pytest.raises(TableChangedError, match="1 of 2 prepared transactions") as refused:
            query.run(store, query.batch(1), ids(3))
    query.sql(str(refused.value).partition("continue: ")[2].rstrip("."))
    query.run(store, query.batch(1), ids(3))

    assert 3 in query.ids()
    assert tables.left(query) == []


def test_an_altered_column_gets_no_bytes_of_another_type(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    plan = query.plan(store, query.batch(1))
    query.sql(tables.alters_id)
    with pytest.raises(RetryableError, match="altered"):
        query.write(plan, [ids(1)])


def test_a_constraint_refuses_the_rows_in_their_task(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    query.sql("ALTER TABLE events ADD CHECK (id < 3)")
    with pytest.raises(SchemaMismatchError, match="rejected rows"):
        query.run(store, query.batch(1), ids(1), ids(4))
    query.run(store, query.batch(1), ids(1), run_id="r2")
    assert query.ids() == [0, 1]
    assert tables.left(query) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delivery", "decoupled"),
        ("writeMode", "upsert"),
        ("schemaEvolution", "addColumns"),
        ("badRows", "drop"),
        ("stagingSchema", "s"),
        ("routeBy", "id"),
    ],
)
def test_options_that_need_staging_tables_are_refused_by_name(query: Any, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*: a query with commit=prepared cannot have it"):
        query.with_options(**{name: value}).sink()


def test_a_stream_that_replaces_the_rows_is_refused(query: Any, store: SqlManifestStore) -> None:
    with pytest.raises(ConfigurationError, match="commit=prepared: the stream replaces"):
        query.plan(store, query.batch(0), overwrite=True)


def test_clean_up_rolls_orphans_back_and_leaves_what_is_committed(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    orphan = query.plan(store, query.batch(1))
    query.write(orphan, [ids(7)], run_id="dead")
    target: Any = query.target()
    table = DatabaseCleanableTable(target._server, target._dialect, target._address)
    is_own = name_parser([query.stream], target._dialect)

    def files() -> list[str]:
        return [one.path for one in table.files() if is_own(one.path)]

    (orphan_file,) = files()
    plan = query.plan(store, query.batch(1))  # rolls it back
    assert files() == []
    messages = query.write(plan, [ids(1), ids(2)])
    listed = files()
    with crash_at("prepared.decided"):
        query.commit(store, messages)
    assert table.delete_files([orphan_file, *listed]) == 0
    query.run(store, query.batch(2), ids(3))

    assert query.ids() == [0, 1, 2, 3]
    query.write(query.plan(store, query.batch(3)), [ids(7)], run_id="dead")
    assert table.delete_files(files()) == 1
    assert tables.left(query) == []
    assert query.state(store, 1) is ManifestState.COMMITTED


def test_a_batch_write_is_refused(query: Any) -> None:
    schema = StructType([StructField("id", LongType())])
    with pytest.raises(ConfigurationError, match="commit=prepared: nobody rolls back"):
        plan_batch_write(query.sink(), schema, overwrite=False)


def test_a_user_without_rights_on_the_table_of_verdicts_is_refused(
    tables: PreparedTables, query: Any, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    other = tables.without_rights(query)
    with pytest.raises(
        AccessRefusedError, match=r"lacks privileges: INSERT, DELETE on|DELETE command denied"
    ):
        other.plan(store, other.batch(1))
