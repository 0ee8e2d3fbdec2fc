"""Decoupled delivery into Postgres tables: many batches in one transaction, each row once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tests.support.backlogs import RecordingListener, start_cli, wait_until
from tests.support.cli import penstock
from tests.support.lakes import ids
from tests.support.postgres_backlog import PostgresBacklog

from penstock.committers.contract import ManifestState
from penstock.committers.database import merge as postgres_merge
from penstock.committers.database import transaction
from penstock.committers.errors import RetryableError, SchemaMismatchError, TableChangedError
from penstock.testing.faults import at_point, crash_at

COMMITTED, ABORTED = ManifestState.COMMITTED, ManifestState.ABORTED


@pytest.fixture
def backlog(
    new_postgres_url: Callable[[], str], store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PostgresBacklog:
    """With a store in SQLite, and one in Postgres."""
    monkeypatch.setenv("PGUSER", "postgres")
    return PostgresBacklog(new_postgres_url(), tmp_path, store_url)


@pytest.fixture
def lake(
    new_postgres_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PostgresBacklog:
    """With a store in SQLite."""
    monkeypatch.setenv("PGUSER", "postgres")
    return PostgresBacklog(new_postgres_url(), tmp_path)


def holds_all(backlog: PostgresBacklog) -> bool:
    """Each row once, nothing PREPARED, no staging table."""
    rows = list(range(1, backlog.rows + 1))
    return (backlog.query.ids(), backlog.left, backlog.query.staged()) == (rows, 0, [])


def test_a_batch_without_rows_is_delivered_with_the_others(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.query.run(lake.store, lake.query.batch(1), ids())
    lake.batches += 1
    lake.fill(1)
    lake.drain()

    assert lake.merged == [3]
    assert holds_all(lake)


@pytest.mark.parametrize(
    ("bound", "value", "merged"), [("TABLES_MAX", 4, [2, 2, 1]), ("BYTES_MAX", 1, [1] * 5)]
)
def test_one_transaction_moves_only_so_much(
    lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, merged: list[int]
) -> None:
    monkeypatch.setattr(postgres_merge, bound, value)
    lake.fill(5, tasks=2)
    lake.drain()

    assert lake.merged == merged
    assert holds_all(lake)


def test_overwritten_batches_do_not_count(lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_merge, "BYTES_MAX", 30)  # a row of one number has 14
    lake.fill(5, overwrite=True)
    lake.drain()

    assert lake.merged == [5]
    assert lake.query.ids() == [9, 10]
    assert lake.query.staged() == []


def test_a_column_that_comes_in_the_middle_ends_a_delivery(lake: PostgresBacklog) -> None:
    lake.fill(2)
    lake.add_column()
    lake.fill(2)
    lake.drain()

    assert lake.merged == [2, 2]
    assert [row[0] for row in lake.query.sql("SELECT twice FROM events ORDER BY id")] == [
        *[None] * 4,
        5,
        6,
        7,
        8,
    ]
    assert holds_all(lake)


# Crashes and other processes --------------------------------------------------------------------------


def test_a_delivery_without_staging_tables_is_abandoned_and_parked(lake: PostgresBacklog) -> None:
    lake.fill(3)
    with crash_at("deliver.prepared"):
        lake.drain()
    lake.query.sql(f"DROP TABLE {sorted(lake.query.staged())[1]}")
    listener = RecordingListener()
    drained = lake.drain(listener)

    assert isinstance(listener.failures[0][1], TableChangedError)
    assert drained.is_parked
    assert lake.query.ids() == [1, 2]  # the batch before it
    assert lake.store.deliveries.unfinished(lake.status.key) is None


def test_a_delivery_committed_by_another_process_is_not_taken_for_lost(lake: PostgresBacklog) -> None:
    """Its commit drops its staging tables."""
    lake.fill(2)
    with crash_at("deliver.prepared"):
        lake.drain()
    delivery = lake.store.deliveries.unfinished(lake.status.key)
    assert delivery is not None
    late = lake.query.target()
    assert late.token(lake.query.query_id) is None
    lake.query.target().commit(delivery.manifest)

    assert late.missing(delivery.manifest) == []
    token = late.token(lake.query.query_id)
    assert token is not None
    assert token.batch_id == 1
    lake.drain()
    assert lake.merged == [2]
    assert holds_all(lake)


def test_a_delivery_of_which_the_table_holds_a_part_is_refused_and_the_rest_delivered(
    lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the part has left its staging tables, which somebody was reading."""
    monkeypatch.setattr(transaction, "DROP_TIMEOUT_S", 0.1)
    lake.fill(3)
    first = lake.store.manifest(lake.status.key, 0)
    assert first is not None

    def commit_first() -> None:
        with psycopg.connect(lake.query.url.replace("+psycopg", "")) as dump:
            dump.execute(f"LOCK TABLE {', '.join(lake.query.staged())} IN ACCESS SHARE MODE")
            lake.query.target().commit(first)

    with at_point("commit.start", commit_first):
        lake.drain()

    assert lake.merged == [2]
    assert set(lake.states.values()) == {COMMITTED}
    assert lake.query.ids() == list(range(1, 7))


def test_two_processes_that_deliver_at_once_add_each_row_once(lake: PostgresBacklog) -> None:
    """The lease is taken over while the first one is about to commit."""
    lake.fill(3)

    def take_over() -> None:
        delivery = lake.store.deliveries.unfinished(lake.status.key)
        assert delivery is not None
        table = lake.query.target()
        outcome = table.commit(delivery.manifest)
        lake.store.deliveries.finish(delivery, outcome.table_version)  # type: ignore[union-attr]

    with at_point("commit.start", take_over):
        lake.drain()

    assert lake.merged == [3]
    assert holds_all(lake)


def test_two_delivery_processes_on_one_store_add_each_row_once(backlog: PostgresBacklog) -> None:
    words = ("deliver", "--store", backlog.store_url, "--lease-seconds", "1")
    backlog.query = backlog.query.with_options(deliverAfterBatches="2")
    backlog.fill(1)
    processes = [start_cli(*words) for _ in range(2)]
    try:
        for _ in range(10):
            backlog.fill(3)
        wait_until(lambda: backlog.left < 2)
    finally:
        for process in processes:
            process.terminate()
    assert [process.wait(60) for process in processes] == [0, 0]
    backlog.drain()

    assert sum(backlog.merged) == 31
    assert holds_all(backlog)


def test_the_query_continues_while_the_table_is_locked(lake: PostgresBacklog) -> None:
    lake.fill(1)
    with psycopg.connect(lake.query.url.replace("+psycopg", "")) as migration:
        migration.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        lake.fill(2)
    lake.drain()

    assert lake.merged == [3]
    assert holds_all(lake)


# The table changes under prepared batches -------------------------------------------------------------


def test_each_batch_is_planned_for_the_current_columns_of_the_table(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.query.sql("ALTER TABLE events ALTER id TYPE numeric")
    lake.fill(1)

    kinds = lake.query.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'id' "
        "AND attrelid = ANY(%s::regclass[]) ORDER BY 1",
        lake.query.staged(),
    )
    assert kinds == [("bigint",), ("numeric",)]
    lake.drain()
    assert lake.merged == [1, 1]
    assert holds_all(lake)


def test_a_table_created_again_between_two_batches_is_noticed(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.query.sql("DROP TABLE events; CREATE TABLE events (id bigint)")
    with pytest.raises(TableChangedError, match="dropped and re-created"):
        lake.fill(1)


@pytest.mark.parametrize("kind", ["numeric", "numeric(20,0)", "bigint"])
def test_a_column_that_became_wider_accepts_staged_rows(lake: PostgresBacklog, kind: str) -> None:
    lake.query.sql("CREATE TABLE events (id integer)")
    narrow = pa.table({"id": pa.array([1, 2], pa.int32())})
    lake.query.run(lake.store, lake.query.batch(0), narrow)
    lake.query.sql(f"ALTER TABLE events ALTER id TYPE {kind}")
    lake.drain()

    assert lake.query.ids() == [1, 2]
    assert lake.left == 0


@pytest.mark.parametrize("change", ["DROP COLUMN id, ADD other int", "ALTER id TYPE integer"])
def test_a_table_that_refuses_the_rows_parks_the_stream(lake: PostgresBacklog, change: str) -> None:
    lake.query = lake.query.with_options(deliveryTries="1")
    lake.fill(2)
    lake.query.sql(f"ALTER TABLE events {change}")
    listener = RecordingListener()
    assert lake.drain(listener).is_parked
    assert isinstance(listener.failures[0][1], SchemaMismatchError)
    assert "penstock retry" in str(listener.failures[0][1])

    undo = "ADD id bigint" if "DROP" in change else "ALTER id TYPE bigint"
    lake.query.sql(f"ALTER TABLE events {undo}")
    penstock(lake.store_url, "retry")
    lake.drain()
    assert holds_all(lake)


def test_a_new_column_that_waits_is_not_added_once_more_with_another_type(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.drain()
    lake.add_column()
    lake.fill(1)
    other = pa.table({"id": pa.array([9], pa.int64()), "twice": pa.array(["x"])})
    batch = lake.query.batch(2)
    with pytest.raises(RetryableError, match=r"twice \(bigint\).*adds twice \(text\)"):
        lake.query.plan(lake.store, batch, other.schema)


# Commands ---------------------------------------------------------------------------------------------


def test_deliver_once_status_and_show(lake: PostgresBacklog) -> None:
    lake.fill(3)
    penstock(lake.store_url, "deliver", "--once")
    (stream,) = json.loads(penstock(lake.store_url, "status", "--table", "--json"))["streams"]
    show = json.loads(penstock(lake.store_url, "show", lake.query.query_id, "1", "--json"))

    assert stream["pending"] == 0
    assert (show["in_table"], show["token_batch_id"], len(show["files"])) == ("passed", 2, 1)
    assert holds_all(lake)


def test_a_skipped_batch_is_left_out_and_its_staging_tables_are_found_by_gc(lake: PostgresBacklog) -> None:
    lake.fill(3)
    penstock(lake.store_url, "skip", lake.query.query_id, "1", "--reason", "x", "--yes", "--discard-rows")
    penstock(lake.store_url, "deliver", "--once")

    assert lake.query.ids() == [1, 2, 5, 6]
    assert len(lake.query.staged()) == 1
    lake.query.age_staged()
    penstock(lake.store_url, "gc", "--delete")
    assert lake.query.staged() == []


def test_gc_keeps_staging_tables_of_pending_batches(lake: PostgresBacklog) -> None:
    lake.fill(2)
    lake.query.age_staged()
    penstock(lake.store_url, "gc", "--delete")
    lake.drain()

    assert holds_all(lake)


def test_abort_drops_the_staging_tables_of_pending_batches(lake: PostgresBacklog, tmp_path: Path) -> None:
    lake.query = lake.query.with_options(checkpointLocation=str(tmp_path / "checkpoint"))
    lake.fill(1)
    lake.drain()
    lake.fill(2)
    penstock(lake.store_url, "abort", lake.query.query_id, "--reason", "x", "--yes")

    assert lake.states == {0: COMMITTED, 1: ABORTED, 2: ABORTED}
    assert lake.query.staged() == []
    assert lake.query.ids() == [1, 2]


def test_the_stores_server_gets_no_password(lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.fill(1)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    output = penstock(lake.store_url, "deliver", "--once", exit_code=3)

    assert "to which PGPASSWORD would be sent" in " ".join(output.split())
    assert lake.left == 1
